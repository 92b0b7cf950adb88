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
    PROTOCOL,
    Capability,
    DeviceInfo,
    HostInfo,
    NeuronHeartbeat,
    ReplicaState,
    ReplicaStatus,
    encode_heartbeat,
)
from inference.protocol.held import NO_GATEWAY, HeldRequests, encode_held_requests
from inference.protocol.inbox_parts import FrameAssembler
from inference.protocol.load_report import LoadReport
from tests.fleet.ordered import ordered
from tests.inference.reports import engine_stats

Script = Callable[[Submit], AsyncIterator[list[Event]]]


async def paris(submit: Submit) -> AsyncIterator[list[Event]]:
    request_id = submit.request_id
    yield [Accepted(request_id=request_id, prompt_tokens=7)]
    for text in ("The capital", " is", " Pari", "s."):
        yield [Delta(request_id=request_id, text=text)]
    usage = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=2)
    num_choices = submit.request.n if isinstance(submit.request, GenerationRequest) else 1
    yield [
        *(
            ChoiceFinished(request_id=request_id, reason="stop", index=index)
            for index in range(num_choices)
        ),
        Finished(request_id=request_id, usage=usage),
    ]


def says(*texts: str, reason: FinishReason = "stop") -> Script:
    """Answers with ``texts``, an event each."""

    async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
        request_id = submit.request_id
        yield [Accepted(request_id=request_id, prompt_tokens=7)]
        for text in texts:
            yield [Delta(request_id=request_id, text=text)]
        usage = Usage(prompt_tokens=7, completion_tokens=len(texts))
        yield [
            ChoiceFinished(request_id=request_id, reason=reason),
            Finished(request_id=request_id, usage=usage),
        ]

    return answer


def embeds(*vectors: bytes, prompt_tokens: int = 6) -> Script:
    async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
        request_id = submit.request_id
        yield [Accepted(request_id=request_id, prompt_tokens=prompt_tokens)]
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=0)
        yield [Embedded(request_id=request_id, vectors=list(vectors), usage=usage)]

    return answer


async def accepts(submit: Submit) -> AsyncIterator[list[Event]]:
    """Accepts the request, and reports no more."""
    yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
    await asyncio.Event().wait()


async def prepared(submit: Submit) -> AsyncIterator[list[Event]]:
    """Answers a request for no tokens: its prompt is computed, and nothing else."""
    request_id = submit.request_id
    yield [Accepted(request_id=request_id, prompt_tokens=7)]
    usage = Usage(prompt_tokens=7, completion_tokens=0)
    yield [
        ChoiceFinished(request_id=request_id, reason="length"),
        Finished(request_id=request_id, usage=usage),
    ]


async def endless(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
    while True:
        yield [Delta(request_id=submit.request_id, text="on and ")]
        await asyncio.sleep(0.01)


async def failing(submit: Submit) -> AsyncIterator[list[Event]]:
    failure = Failure(
        code="context_length_exceeded",
        message="9000 tokens; 8192 fit.",
        param="messages",
        too_long=TooLong(prompt_tokens=9000, context_tokens=8192),
    )
    yield [Failed(request_id=submit.request_id, failure=failure)]


def saying(*steps: list[Event]) -> Script:
    """Answers with these events, as those of the request."""

    async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
        for step in steps:
            yield [
                msgspec.structs.replace(event, request_id=submit.request_id)  # type: ignore[type-var]
                for event in step
            ]

    return answer


ACCEPTED = Accepted(request_id="", prompt_tokens=7)


def breaking(
    code: str, *, accepts: bool = False, message: str = "no", usage: Usage | None = None
) -> Script:
    """Fails, once it has accepted the request where it ``accepts``."""
    failed = Failed(request_id="", failure=Failure(code=code, message=message), usage=usage)
    return saying([ACCEPTED], [failed]) if accepts else saying([failed])


def counting(num_prompt_tokens: int, *, reports_count: bool = True) -> Script:
    """Answers like ``paris`` to a prompt of so many tokens: one that is longer than the reservation
    is refused, with its length where ``reports_count``."""

    async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
        most = submit.max_prompt_tokens
        if most is not None and num_prompt_tokens > most:
            failure = over_budget(num_prompt_tokens, most)
            if not reports_count:
                failure = msgspec.structs.replace(failure, num_prompt_tokens=None)
            yield [Failed(request_id=submit.request_id, failure=failure)]
            return
        async for events in paris(submit):
            if isinstance(events[0], Accepted):
                events = [Accepted(request_id=submit.request_id, prompt_tokens=num_prompt_tokens)]
            elif isinstance(events[-1], Finished):
                usage = Usage(prompt_tokens=num_prompt_tokens, completion_tokens=5)
                events[-1] = Finished(request_id=submit.request_id, usage=usage)
            yield events

    return answer


async def silent(submit: Submit) -> AsyncIterator[list[Event]]:
    if submit.request_id:
        await asyncio.Event().wait()
    yield []


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
        heartbeat = encode_heartbeat(ordered(self._heartbeat()))
        await self.client.set(keys.heartbeat_key(self.name), heartbeat, ex=60)
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
        device = DeviceInfo(
            index=0, kind="cpu", name="CPU", total_memory_bytes=8 << 30, free_memory_bytes=4 << 30
        )
        host = HostInfo(
            hostname=self.name,
            os="linux",
            num_cores=2,
            total_memory_bytes=8 << 30,
            free_memory_bytes=4 << 30,
        )
        replicas = []
        if self.status is not None:
            replicas = [
                ReplicaState(
                    model=self.model,
                    job_id="job",
                    status=self.status,
                    since_unix_s=now_s,
                    report=self.report,
                    capabilities=self.capabilities,
                    stats=stats if self.status is ReplicaStatus.READY else None,
                )
            ]
        return NeuronHeartbeat(
            name=self.name,
            epoch=self.epoch,
            version="0",
            protocol=PROTOCOL,
            started_unix_s=now_s,
            time_unix_s=now_s,
            host=host,
            devices=[device],
            replicas=replicas,
            thread_problems=self.thread_problems,
            is_ready=self.is_ready,
        )
