"""A neuron without a model, as a process: like a real one to the gateway, at a known pace.

It speaks the real protocol over the real Redis, with one event batch per gateway and step.

    REDIS_URL=... python -m benchmarks.gateway.neuron --model NAME
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import redis

from fleet.live.reports import LoadOrders
from inference.protocol import keys
from inference.protocol.delivery import FrameAssembler
from inference.protocol.engine import EngineStats
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    Accepted,
    Cancelled,
    ChoiceFinished,
    Delta,
    Event,
    EventBatch,
    Finished,
    Usage,
    encode_event_batch,
)
from inference.protocol.generation import (
    Cancel,
    GenerationRequest,
    InboxFrame,
    Submit,
    decode_inbox_frame,
)
from inference.protocol.heartbeat import (
    PROTOCOL,
    DeviceInfo,
    HostInfo,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
    encode_heartbeat,
)
from inference.protocol.load_report import LoadReport

NEURON_NAME = "bench"
PROMPT_TOKENS = 7
DEFAULT_ANSWER_TOKENS = 16
WORD = " word"
STEP_S = 0.002
FRAMES_PER_READ = 512
IDLE_WAIT_S = 0.5
MEMORY_BYTES = 64 << 30
NUM_BLOCKS = 100_000

REPORT = LoadReport(
    architecture="none",
    device="cpu",
    dtype="none",
    num_parameters=0,
    weight_bytes=0,
    kv_bytes=0,
    num_kv_blocks=NUM_BLOCKS,
    kv_block_tokens=32,
    context_tokens=8192,
    vocab_size=1,
    quantization="none",
    compiled="none",
    load_seconds=0.0,
    tokenizer_dir="",
)


@dataclass(slots=True)
class Answer:
    gateway_id: str
    num_wanted: int
    num_given: int = 0


class SteppingNeuron:
    def __init__(self, client: redis.Redis, *, model: str) -> None:
        self._client = client
        self._model = model
        self._epoch = uuid.uuid4().hex
        self._started_unix_s = time.time()
        self._answers: dict[str, Answer] = {}
        self._handled_ids: list[bytes] = []
        self._assembler = FrameAssembler()
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._next_beat_s = 0.0

    def run(self) -> None:
        due_s = time.monotonic()
        while True:
            self._beat_if_due()
            if self._answers:
                time.sleep(max(0.0, due_s - time.monotonic()))
                due_s = max(due_s + STEP_S, time.monotonic())
                frames = self._publish(self._step())
            else:
                self._client.brpop([keys.neuron_queue(NEURON_NAME)], timeout=IDLE_WAIT_S)
                frames = self._publish([])
                due_s = time.monotonic() + STEP_S
            while frames:
                frames = self._publish(self._take(frames))

    def _take(self, frames: list[bytes]) -> list[tuple[str, Event]]:
        events: list[tuple[str, Event]] = []
        for data in frames:
            frame: InboxFrame = decode_inbox_frame(data)
            if isinstance(frame, Submit):
                events += self._accept(frame)
            elif isinstance(frame, Cancel):
                events += self._cancel(frame)
        return events

    def _accept(self, submit: Submit) -> list[tuple[str, Event]]:
        request_id = submit.request_id
        if request_id in self._answers:  # repeated before the answer's first event came
            return []
        wanted = None
        if isinstance(submit.request, GenerationRequest):
            wanted = submit.request.sampling.max_tokens
        self._answers[request_id] = Answer(submit.gateway_id, wanted or DEFAULT_ANSWER_TOKENS)
        return [(submit.gateway_id, Accepted(request_id=request_id, prompt_tokens=PROMPT_TOKENS))]

    def _cancel(self, cancel: Cancel) -> list[tuple[str, Event]]:
        answer = self._answers.pop(cancel.request_id, None)
        if answer is None:
            return []
        return [(answer.gateway_id, Cancelled(request_id=cancel.request_id))]

    def _step(self) -> list[tuple[str, Event]]:
        events: list[tuple[str, Event]] = []
        for request_id, answer in list(self._answers.items()):
            answer.num_given += 1
            events.append((answer.gateway_id, Delta(request_id=request_id, text=WORD)))
            if answer.num_given < answer.num_wanted:
                continue
            del self._answers[request_id]
            usage = Usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=answer.num_given)
            finished = ChoiceFinished(request_id=request_id, reason="length")
            events.append((answer.gateway_id, finished))
            events.append((answer.gateway_id, Finished(request_id=request_id, usage=usage)))
        return events

    def _publish(self, events: list[tuple[str, Event]]) -> list[bytes]:
        """Returns the frames that came meanwhile. Call it when the earlier ones are handled."""
        by_gateway: defaultdict[str, list[Event]] = defaultdict(list)
        for gateway_id, event in events:
            by_gateway[gateway_id].append(event)
        pipeline = self._client.pipeline(transaction=False)
        for gateway_id, batch in by_gateway.items():
            pipeline.xadd(
                keys.events_key(NEURON_NAME, gateway_id),
                {EVENT_BATCH_FIELD: self._encode(gateway_id, batch)},
                maxlen=keys.EVENT_STREAM_MAX_ENTRIES,
            )
        pipeline.delete(keys.neuron_queue(NEURON_NAME))
        inbox = keys.inbox_key(NEURON_NAME)
        if self._handled_ids:
            pipeline.xdel(inbox, *self._handled_ids)
        pipeline.xrange(inbox, count=FRAMES_PER_READ)
        entries: list[tuple[bytes, dict[bytes, bytes]]] = pipeline.execute()[-1]
        self._handled_ids = [entry_id for entry_id, _ in entries]
        now_s = time.monotonic()
        frames = [self._assembler.add(fields, now_s) for _, fields in entries]
        return [frame for frame in frames if frame is not None]

    def _encode(self, gateway_id: str, events: list[Event]) -> bytes:
        number = self._numbers[gateway_id]
        self._numbers[gateway_id] = number + 1
        return encode_event_batch(
            EventBatch(epoch=self._epoch, sequence_number=number, events=events)
        )

    def _beat_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_beat_s:
            return
        self._next_beat_s = now_s + keys.HEARTBEAT_INTERVAL_S
        beat = self._heartbeat(time.time())
        pipeline = self._client.pipeline(transaction=False)
        expiry_s = int(keys.HEARTBEAT_EXPIRY_S)
        pipeline.set(keys.heartbeat_key(NEURON_NAME), encode_heartbeat(beat), ex=expiry_s)
        pipeline.zadd(keys.NEURONS, {NEURON_NAME: time.time()})
        pipeline.execute()

    def _heartbeat(self, now_s: float) -> NeuronHeartbeat:
        orders = LoadOrders(os.environ["HELEXA_SECRET_KEY"])
        memory: dict[str, Any] = {
            "total_memory_bytes": MEMORY_BYTES,
            "free_memory_bytes": MEMORY_BYTES,
        }
        replica = ReplicaState(
            model=self._model,
            job_id="benchmark",
            order=orders.order(neuron=NEURON_NAME, model=self._model),
            status=ReplicaStatus.READY,
            since_unix_s=self._started_unix_s,
            report=REPORT,
            capabilities=["chat", "completions"],
            stats=EngineStats(
                in_flight=len(self._answers),
                queue_depth=0,
                kv_blocks_used=len(self._answers),
                kv_blocks_total=NUM_BLOCKS,
                decode_tokens_per_s=0.0,
                prefill_tokens_per_s=0.0,
                last_forward_unix_s=now_s,
            ),
        )
        return NeuronHeartbeat(
            name=NEURON_NAME,
            epoch=self._epoch,
            version="benchmark",
            protocol=PROTOCOL,
            started_unix_s=self._started_unix_s,
            time_unix_s=now_s,
            host=HostInfo(hostname=NEURON_NAME, os="linux", num_cores=1, **memory),
            devices=[DeviceInfo(index=0, kind="cpu", name="CPU", **memory)],
            replicas=[replica],
        )


if __name__ == "__main__":
    SteppingNeuron(redis.Redis.from_url(os.environ["REDIS_URL"]), model=sys.argv[-1]).run()
