"""A gateway's streams of events: made for each neuron and made again where they are gone, and read
within bounds, whatever a neuron has written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
import redis
from redis.asyncio import Redis

from inference.gateway.redis import event_reader
from inference.gateway.redis.event_reader import TRIM_AFTER_BYTES, EventReader, EventReaders
from inference.gateway.request.event_stream import RequestStream, RequestStreams
from inference.protocol import keys
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    Accepted,
    Delta,
    Event,
    EventBatch,
    Finished,
    Usage,
    encode_event_batch,
)
from inference.redis_link import RedisLink, RedisOutage
from inference.wire.errors import ApiError
from tests.inference.gateway.bodies import open_stream, until
from tests.inference.gateway.conftest import GATEWAY, GENEROUS_S

MAX_REPLY_BYTES = 400_000
MakeReader = Callable[[str], EventReader]


class Writer:
    def __init__(self, client: Redis) -> None:
        self._client = client
        self._numbers: dict[str, int] = {}

    async def write(self, neuron: str, *events: Event, has_reader: bool = False) -> str:
        number = self._numbers.get(neuron, 0)
        self._numbers[neuron] = number + 1
        batch = EventBatch(epoch="e", sequence_number=number, events=list(events))
        fields: Any = {EVENT_BATCH_FIELD: encode_event_batch(batch)}
        key = keys.events_key(neuron, GATEWAY)
        entry_id = await self._client.xadd(key, fields, nomkstream=has_reader)
        return bytes(entry_id or b"").decode()

    async def accept(self, neuron: str, request_id: str) -> None:
        await self.write(neuron, Accepted(request_id=request_id, prompt_tokens=1), has_reader=True)

    async def is_read(self, streams: RequestStreams, neuron: str, request_id: str) -> None:
        """Waits until a new request of the neuron is accepted through its stream."""
        stream = open_stream(streams, request_id, neuron)
        await self.accept(neuron, request_id)
        await until(lambda: stream.accepted)


class Faults(list[tuple[str, str]]):
    """What readers have found that no honest neuron writes."""

    def add(self, neuron: str, what: str, *, is_grave: bool = False) -> None:
        self.append((neuron, what))


@pytest.fixture
def writer(redis_client: Redis) -> Writer:
    return Writer(redis_client)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the honest entries of these tests fit into a reply."""
    monkeypatch.setattr(event_reader, "MAX_ENTRIES_A_READ", 3)


@pytest_asyncio.fixture
async def make_reader(
    redis_url: str, streams: RequestStreams, faults: Faults
) -> AsyncIterator[MakeReader]:
    links: list[RedisLink] = []

    def make(neuron: str) -> EventReader:
        links.append(RedisLink(redis_url, timeout_s=GENEROUS_S, max_reply_bytes=MAX_REPLY_BYTES))
        return EventReader(
            links[-1],
            neuron=neuron,
            gateway_id=GATEWAY,
            streams=streams,
            outage=RedisOutage(GENEROUS_S, lambda: None),
            on_fault=faults.add,
        )

    yield make
    for link in links:
        await link.aclose()


@asynccontextmanager
async def reading(reader: EventReader) -> AsyncIterator[None]:
    running = asyncio.create_task(reader.run())
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def read_until(reader: EventReader, entry_id: str) -> None:
    """Waits until that has been delivered as well: between two entries others may run."""
    async with reading(reader):
        await until(lambda: reader.last_entry_id == entry_id and reader.caught_up_s)


async def code_of(stream: RequestStream) -> str:
    with pytest.raises(ApiError) as raised:
        await stream.next_events()
    return raised.value.code


async def test_reads_are_bounded_and_what_was_read_is_taken_away(
    make_reader: MakeReader, writer: Writer, streams: RequestStreams, redis_client: Redis
) -> None:
    reader = make_reader("n1")
    stream = open_stream(streams, "r1", "n1")
    last = await writer.write("n1", Accepted(request_id="r1", prompt_tokens=1))
    deltas = [Delta(request_id="r1", text=f"{number}:" + "x" * 60_000) for number in range(40)]
    for delta in deltas:
        last = await writer.write("n1", delta)
    await read_until(reader, last)
    read: list[Event] = []
    while len(read) <= len(deltas):
        taken = await stream.next_events()
        assert sum(len(event.text) for event in taken if isinstance(event, Delta)) < 350_000
        read += taken
    assert read[1:] == deltas
    for _ in range(40):
        last = await writer.write("n1", Delta(request_id="gone", text="x" * 100_000))
    async with reading(reader), asyncio.timeout(GENEROUS_S):
        while await redis_client.xlen(reader.key) > TRIM_AFTER_BYTES // 100_000 + 1:
            await asyncio.sleep(0.01)
        await until(lambda: reader.last_entry_id == last)


async def test_too_much_for_requests_that_are_not_here_is_a_fault(
    make_reader: MakeReader, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "MAX_UNKNOWN_BYTES", 3 * 1024 * 1024)
    reader = make_reader("n1")
    events: list[Event] = [Delta(request_id="gone", text="x")]
    for number in range(4):
        assert faults == []
        reader.deliver(EventBatch(epoch="e", sequence_number=number, events=events), 1024 * 1024)
    assert faults == [("n1", "it wrote 3 MiB of events for requests that are not here")]


async def test_a_neurons_faults_are_its_own(
    make_reader: MakeReader,
    redis_client: Redis,
    writer: Writer,
    faults: Faults,
    streams: RequestStreams,
) -> None:
    honest, greedy = open_stream(streams, "r1", "n1"), open_stream(streams, "r2", "n2")
    usage = Usage(prompt_tokens=1, completion_tokens=123_456)
    await writer.write("n2", Accepted(request_id="r1", prompt_tokens=1))
    stolen = Finished(request_id="r1", usage=usage)
    last = await writer.write("n2", Delta(request_id="r1", text="mine"), stolen)
    second = make_reader("n2")
    await read_until(second, last)
    assert not honest.accepted and not honest.ended and not honest.usage_counter.is_settled
    assert faults == [("n2", "it answered a request that another neuron serves")] * 3
    faults.clear()
    for junk in ({b"b": b"\xc1"}, {b"x": b"y"}, {b"b": b""}):
        await redis_client.xadd(keys.events_key("n1", GATEWAY), junk)
    await writer.write("n1", Accepted(request_id="r1", prompt_tokens=1))
    await writer.write("n2", Delta(request_id="r2", text="x" * 2 * MAX_REPLY_BYTES))
    last = await writer.write("n1", Delta(request_id="r1", text="fine"))
    async with reading(second):
        await until(lambda: greedy.ended)
    assert not await redis_client.exists(keys.events_key("n2", GATEWAY))
    assert faults == [("n2", "its events are too large to be read at once")]
    await read_until(make_reader("n1"), last)
    assert [type(event) for event in await honest.next_events()] == [Accepted, Delta]
    assert await code_of(greedy) == "events_lost"
    assert not honest.ended
    assert [neuron for neuron, _ in faults[1:]] == ["n1"] * 3, "what does not decode is skipped"


@pytest_asyncio.fixture
async def readers(
    redis_url: str, redis_client: Redis, streams: RequestStreams, faults: Faults
) -> AsyncIterator[EventReaders]:
    made = EventReaders(
        redis_client,
        lambda: RedisLink(redis_url, timeout_s=GENEROUS_S),
        GATEWAY,
        streams,
        stall_limit_s=GENEROUS_S,
        on_fault=faults.add,
    )
    yield made
    await made.close()


@pytest.mark.parametrize("command", [("DEL",), ("SET", "x"), ("PEXPIRE", "-1")])
async def test_a_neuron_that_deletes_its_stream_fails_its_own_requests(
    readers: EventReaders,
    redis_client: Redis,
    writer: Writer,
    streams: RequestStreams,
    faults: Faults,
    command: tuple[str, ...],
) -> None:
    for name in ("n1", "n2"):
        await readers.ensure(name)
    own, other = open_stream(streams, "r1", "n1"), open_stream(streams, "r2", "n2")
    verb, *arguments = command
    key = keys.events_key("n1", GATEWAY)
    await redis_client.execute_command(verb, key, *arguments)
    await readers.upkeep(["n1", "n2"])
    assert await code_of(own) == "events_lost"
    assert not other.ended
    assert ("n1", "its stream of events is gone") in faults
    assert {neuron for neuron, _ in faults} == {"n1"}
    await writer.is_read(streams, "n1", "r3")
    assert 0 < await redis_client.ttl(key) <= keys.EVENTS_EXPIRY_S
    await writer.accept("n2", "r2")
    await until(lambda: other.accepted)
    await redis_client.xadd(key, {b"x": b"y"}, id=f"{2**64 - 1}-{2**64 - 1}")  # the largest
    with pytest.raises(redis.ResponseError):
        await writer.accept("n1", "r4")
    await readers.upkeep(["n1", "n2"])
    await writer.is_read(streams, "n2", "r5")


async def test_a_redis_that_lost_everything_and_a_neuron_that_left(
    readers: EventReaders,
    redis_client: Redis,
    writer: Writer,
    streams: RequestStreams,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await asyncio.gather(*(readers.ensure("n1") for _ in range(5)))
    stream = open_stream(streams, "r1", "n1")
    await redis_client.flushdb()
    readers.redis_lost_everything()
    assert await code_of(stream) == "redis_unavailable"
    await readers.upkeep(["n1"])
    await writer.is_read(streams, "n1", "r2")
    monkeypatch.setattr(event_reader, "IDLE_LIMIT_S", 0.0)
    await readers.upkeep(["n1"])
    await readers.upkeep([])
    assert readers.neurons == {"n1"}, "a request is open there"
    for one in [*streams]:
        streams.remove(one)
    await asyncio.sleep(0.01)
    await readers.upkeep([])
    assert not readers.neurons
    await readers.ensure("n1")
    await writer.is_read(streams, "n1", "r3")
    await readers.close()
    assert not await redis_client.exists(keys.events_key("n1", GATEWAY))
