"""A neuron without a model: publishes a heartbeat, reads the inbox, writes a test's events."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable

import msgspec
import redis
import redis.asyncio

from inference.neuron.errors import over_budget
from inference.protocol import keys
from inference.protocol.delivery import (
    NO_GATEWAY,
    FrameAssembler,
    HeldRequests,
    encode_held_requests,
)
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    Accepted,
    Cancelled,
    ChoiceFinished,
    Delta,
    Embedded,
    Event,
    EventBatch,
    Failed,
    Failure,
    Finished,
    FinishReason,
    TooLong,
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
    Capability,
    NeuronHeartbeat,
    ReplicaStatus,
    encode_heartbeat,
)
from inference.protocol.load_report import LoadReport
from tests.fleet.conftest import device, heartbeat, ordered, replica
from tests.inference.reports import engine_stats

Script = Callable[[Submit], AsyncIterator[list[Event]]]
ACCEPTED = Accepted(request_id="", prompt_tokens=7)
FINISHED = ChoiceFinished(request_id="", reason="stop")


def saying(*steps: list[Event]) -> Script:
    """Answers with these events, as those of the request."""

    async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
        for step in steps:
            yield [
                msgspec.structs.replace(event, request_id=submit.request_id)  # type: ignore[type-var]
                for event in step
            ]

    return answer


def then(steps: Script, more: Script) -> Script:
    """Answers with those events, and then with these."""

    async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
        for script in (steps, more):
            async for events in script(submit):
                yield events

    return answer


def ended(reason: FinishReason = "stop", **usage: int) -> list[Event]:
    """The last events of an answer."""
    finished = ChoiceFinished(request_id="", reason=reason)
    return [finished, Finished(request_id="", usage=Usage(**{"prompt_tokens": 7} | usage))]


def deltas(*texts: str) -> list[list[Event]]:
    return [[Delta(request_id="", text=text)] for text in texts]


async def paris(submit: Submit) -> AsyncIterator[list[Event]]:
    num_choices = submit.request.n if isinstance(submit.request, GenerationRequest) else 1
    choices = [msgspec.structs.replace(FINISHED, index=index) for index in range(num_choices)]
    _, finished = ended(completion_tokens=5, cached_tokens=2)
    words = deltas("The capital", " is", " Pari", "s.")
    async for events in saying([ACCEPTED], *words, [*choices, finished])(submit):
        yield events


def says(*texts: str, reason: FinishReason = "stop") -> Script:
    """Answers with ``texts``, an event each."""
    return saying([ACCEPTED], *deltas(*texts), ended(reason, completion_tokens=len(texts)))


def embeds(*vectors: bytes, prompt_tokens: int = 6) -> Script:
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=0)
    accepted = Accepted(request_id="", prompt_tokens=prompt_tokens)
    return saying([accepted], [Embedded(request_id="", vectors=list(vectors), usage=usage)])


async def silent(submit: Submit) -> AsyncIterator[list[Event]]:
    if submit.request_id:
        await asyncio.Event().wait()
    yield []


accepts = then(saying([ACCEPTED]), silent)
"""Accepts the request, and reports no more."""
prepared = saying([ACCEPTED], ended("length", completion_tokens=0))
"""Answers a request for no tokens: its prompt is computed, and nothing else."""


async def endless(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
    while True:
        yield [Delta(request_id=submit.request_id, text="on and ")]
        await asyncio.sleep(0.01)


FULL = Failure(
    code="context_length_exceeded",
    message="9000 tokens; 8192 fit.",
    param="messages",
    too_long=TooLong(prompt_tokens=9000, context_tokens=8192),
)
failing = saying([Failed(request_id="", failure=FULL)])


def breaking(
    code: str, *, accepts: bool = False, message: str = "no", usage: Usage | None = None
) -> Script:
    """Fails, once it has accepted the request where it ``accepts``."""
    failed = Failed(request_id="", failure=Failure(code=code, message=message), usage=usage)
    return saying([ACCEPTED], [failed]) if accepts else saying([failed])


def counting(num_prompt_tokens: int, *, reports_count: bool = True) -> Script:
    """Answers like ``paris`` to a prompt of so many tokens: one that is longer than the reservation
    is refused, with its length where ``reports_count``."""
    accepted = Accepted(request_id="", prompt_tokens=num_prompt_tokens)
    words = deltas("The capital", " is", " Pari", "s.")
    usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": 5}
    fits = saying([accepted], *words, ended(**usage))

    async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
        most, script = submit.max_prompt_tokens, fits
        if most is not None and num_prompt_tokens > most:
            failure = over_budget(num_prompt_tokens, most)
            if not reports_count:
                failure = msgspec.structs.replace(failure, num_prompt_tokens=None)
            script = saying([Failed(request_id="", failure=failure)])
        async for events in script(submit):
            yield events

    return answer


class FakeNeuron:
    def __init__(
        self, client: redis.asyncio.Redis, *, name: str = "beast", model: str = "tiny"
    ) -> None:
        self.client = client
        self._assembler = FrameAssembler()
        self.name = name
        self.model = model
        self.status: ReplicaStatus | None = ReplicaStatus.READY
        self.capabilities: list[Capability] = ["chat", "completions"]
        self.report: LoadReport | None = None
        self.epoch = uuid.uuid4().hex
        self.script: Script = paris
        self.frames: list[InboxFrame] = []
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.submitted: asyncio.Queue[Submit] = asyncio.Queue()
        self.sequence_numbers: dict[str, int] = {}
        self.usage_of_cancelled: Usage | None = None
        self.ignores_cancels = False
        self._gateways: dict[str, str] = {}
        self._answers: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()
        self._sending = asyncio.Lock()
        self._num_beats = 0
        self.closing = False
        self.thread_problems: list[str] = []
        self.is_ready = True
        self.queue_depth = 2
        self.last_forward_age_s = 0.0
        """The queue that its heartbeat reports of its engine."""

    async def beat(self) -> None:
        beat = encode_heartbeat(ordered(self._heartbeat()))
        await self.client.set(keys.heartbeat_key(self.name), beat, ex=60)
        await self.client.zadd(keys.NEURONS, {self.name: time.time()})

    async def hold(self, held: dict[str, list[str]], *, is_behind: bool = False) -> None:
        """Publishes the requests that it holds for each gateway now."""
        self._num_beats += 1
        nothing = HeldRequests(epoch=self.epoch, beat=self._num_beats)
        fields = {NO_GATEWAY: encode_held_requests(nothing)} | {
            gateway_id: encode_held_requests(
                msgspec.structs.replace(nothing, request_ids=ids, is_behind=is_behind)
            )
            for gateway_id, ids in held.items()
        }
        await self.client.hset(keys.held_key(self.name), mapping=fields)

    async def die(self) -> None:
        """Its heartbeat lapses and its answers stop."""
        await self.client.delete(keys.heartbeat_key(self.name))
        self.stop()

    def stop(self) -> None:
        for request_id in self._answers:
            self._end(request_id)

    def _end(self, request_id: str) -> None:
        self._ended.add(request_id)
        if task := self._answers.get(request_id):
            task.cancel()

    async def serve(self) -> None:
        while not self.closing:
            try:
                await self._take_frames()
            except redis.RedisError:
                await asyncio.sleep(0.05)

    async def _take_frames(self) -> None:
        inbox = keys.inbox_key(self.name)
        reply = await self.client.xread({inbox: "0"}, block=100)
        for entry_id, fields in reply[0][1] if reply else []:
            if frame := self._assembler.add(fields, time.monotonic()):
                await self._take(decode_inbox_frame(frame))
            await self.client.xdel(inbox, entry_id)

    async def _take(self, frame: InboxFrame) -> None:
        self.frames.append(frame)
        if isinstance(frame, Cancel):
            self.cancelled.put_nowait(frame.request_id)
            await self._cancel(frame.request_id)
        elif frame.request_id not in self._answers:
            self.submitted.put_nowait(frame)
            self._gateways[frame.request_id] = frame.gateway_id
            self._answers[frame.request_id] = asyncio.create_task(self._answer(frame))

    async def _cancel(self, request_id: str) -> None:
        self._end(request_id)
        if self.ignores_cancels or request_id not in self._gateways:
            return
        cancelled = Cancelled(request_id=request_id, usage=self.usage_of_cancelled)
        await self.send(self._gateways[request_id], [cancelled])

    async def _answer(self, submit: Submit) -> None:
        async for events in self.script(submit):
            # Up to Python 3.11 a cancellation is lost in ``asyncio.wait_for``, in which the client
            # writes, when what it waits for is done at that moment (bpo-37658).
            if submit.request_id in self._ended:
                return
            await self.send(submit.gateway_id, events)

    async def send(self, gateway_id: str, events: list[Event]) -> None:
        async with self._sending:
            number = self.sequence_numbers.get(gateway_id, 0)
            self.sequence_numbers[gateway_id] = number + 1
            batch = EventBatch(epoch=self.epoch, sequence_number=number, events=events)
            await self.client.xadd(
                keys.events_key(self.name, gateway_id),
                {EVENT_BATCH_FIELD: encode_event_batch(batch)},
            )

    def _heartbeat(self) -> NeuronHeartbeat:
        now_s = time.time()
        stats = engine_stats(
            in_flight=1,
            queue_depth=self.queue_depth,
            kv_blocks_used=3,
            kv_blocks_total=400,
            decode_tokens_per_s=50.0,
            prefill_tokens_per_s=500.0,
            last_forward_unix_s=now_s - self.last_forward_age_s,
        )
        state = replica(
            model=self.model,
            job_id="job",
            status=self.status or ReplicaStatus.READY,
            since_unix_s=now_s,
            report=self.report,
            capabilities=self.capabilities,
            stats=stats if self.status is ReplicaStatus.READY else None,
        )
        cpu = device(name="CPU", total_memory_bytes=8 << 30, free_memory_bytes=4 << 30)
        return heartbeat(
            self.name,
            epoch=self.epoch,
            version="0",
            started_unix_s=now_s,
            time_unix_s=now_s,
            devices=[cpu],
            replicas=[state] if self.status is not None else [],
            thread_problems=self.thread_problems,
            is_ready=self.is_ready,
        )
