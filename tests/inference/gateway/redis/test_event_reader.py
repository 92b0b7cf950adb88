"""A gateway's streams of events: made for each neuron and made again where they are gone, and read
within bounds, whatever a neuron has written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio

from inference.gateway.redis import event_reader
from inference.gateway.redis.event_reader import (
    TRIM_AFTER_BYTES,
    EventReader,
    EventReaders,
)
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
from tests.inference.gateway.redis.conftest import GATEWAY, GENEROUS_S, Faults, Writer

MAX_REPLY_BYTES = 400_000


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the honest entries of these tests fit into a reply."""
    monkeypatch.setattr(event_reader, "MAX_ENTRIES_A_READ", 3)


MakeReader = Callable[[str], EventReader]


@pytest_asyncio.fixture
async def make_reader(
    redis_url: str, streams: RequestStreams, faults: Faults
) -> AsyncIterator[MakeReader]:
    links: list[RedisLink] = []

    def make(neuron: str) -> EventReader:
        link = RedisLink(redis_url, timeout_s=GENEROUS_S, max_reply_bytes=MAX_REPLY_BYTES)
        links.append(link)
        return EventReader(
            link,
            neuron=neuron,
            gateway_id=GATEWAY,
            streams=streams,
            outage=RedisOutage(GENEROUS_S, lambda: None),
            on_fault=faults.add,
        )

    yield make
    for link in links:
        await link.aclose()


@pytest_asyncio.fixture
async def reader(make_reader: MakeReader) -> EventReader:
    return make_reader("n1")


async def _stop(reading: asyncio.Task[None]) -> None:
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def _read_until(reader: EventReader, entry_id: str) -> None:
    """Waits until that has been delivered as well: between two entries others may run."""
    reading = asyncio.create_task(reader.run())
    try:
        await until(lambda: reader.last_entry_id == entry_id and reader.caught_up_s)
    finally:
        await _stop(reading)


def _deltas(stream: RequestStream, number: int, num_chars: int) -> list[Delta]:
    text = "x" * num_chars
    return [Delta(request_id=stream.request_id, text=f"{n}:{text}") for n in range(number)]


async def test_reads_are_bounded(
    reader: EventReader, writer: Writer, streams: RequestStreams
) -> None:
    stream = open_stream(streams, "r1", "n1")
    last = await writer.write("n1", Accepted(request_id="r1", prompt_tokens=1))
    deltas = _deltas(stream, 40, 60_000)
    for delta in deltas:
        last = await writer.write("n1", delta)
    await _read_until(reader, last)
    read: list[Event] = []
    while len(read) <= len(deltas):
        taken = await stream.next_events()
        assert sum(len(event.text) for event in taken if isinstance(event, Delta)) < 350_000
        read += taken
    assert read[1:] == deltas


async def test_what_was_read_is_taken_away_so_that_its_neuron_sends_more(
    reader: EventReader, writer: Writer, redis_client: redis.asyncio.Redis
) -> None:
    written = [
        await writer.write("n1", Delta(request_id="gone", text="x" * 100_000)) for _ in range(40)
    ]
    reading = asyncio.create_task(reader.run())
    async with asyncio.timeout(GENEROUS_S):
        while await redis_client.xlen(reader.key) > TRIM_AFTER_BYTES // 100_000 + 1:
            await asyncio.sleep(0.01)
    await until(lambda: reader.last_entry_id == written[-1])
    await _stop(reading)


async def test_too_much_for_requests_that_are_not_here_is_a_fault(
    reader: EventReader,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
    streams: RequestStreams,
) -> None:
    monkeypatch.setattr(event_reader, "MAX_UNKNOWN_BYTES", 3 * 1024 * 1024)
    open_stream(streams, "r1", "n1")
    events: list[Event] = [Accepted(request_id="r1", prompt_tokens=1)]
    reader.deliver(EventBatch(epoch="e", sequence_number=0, events=events), 4 * 1024 * 1024)
    events = [Delta(request_id="gone", text="x")]
    for number in range(1, 5):
        assert faults == []
        reader.deliver(EventBatch(epoch="e", sequence_number=number, events=events), 1024 * 1024)
    assert faults == [("n1", "it wrote 3 MiB of events for requests that are not here")]


async def test_an_entry_over_the_bound_fails_its_own_neurons_requests_alone(
    make_reader: MakeReader,
    redis_client: redis.asyncio.Redis,
    writer: Writer,
    faults: Faults,
    streams: RequestStreams,
) -> None:
    honest, greedy = open_stream(streams, "r1", "n1"), open_stream(streams, "r2", "n2")
    await writer.write("n1", Accepted(request_id="r1", prompt_tokens=1))
    await writer.write("n2", Accepted(request_id="r2", prompt_tokens=1))
    await writer.write("n2", Delta(request_id="r2", text="x" * 2 * MAX_REPLY_BYTES))
    last = await writer.write("n1", Delta(request_id="r1", text="fine"))
    reading = asyncio.create_task(make_reader("n2").run())
    await until(lambda: greedy.ended)
    await _stop(reading)
    assert not await redis_client.exists(keys.events_key("n2", GATEWAY))
    await _read_until(make_reader("n1"), last)
    assert [type(event) for event in await honest.next_events()] == [Accepted, Delta]
    with pytest.raises(ApiError) as raised:
        await greedy.next_events()
    assert raised.value.code == "events_lost"
    assert not honest.ended
    assert faults == [("n2", "its events are too large to be read at once")]


async def test_events_reach_the_requests_of_their_own_neuron_alone(
    make_reader: MakeReader,
    writer: Writer,
    faults: Faults,
    streams: RequestStreams,
) -> None:
    stream = open_stream(streams, "r1", "n1")
    usage = Usage(prompt_tokens=1, completion_tokens=123_456)
    await writer.write("n2", Accepted(request_id="r1", prompt_tokens=1))
    last = await writer.write(
        "n2", Delta(request_id="r1", text="mine"), Finished(request_id="r1", usage=usage)
    )
    await _read_until(make_reader("n2"), last)
    assert not stream.accepted and not stream.ended and not stream.usage_counter.is_settled
    assert stream.epoch == "e"
    assert faults == [("n2", "it answered a request that another neuron serves")] * 3


@pytest.mark.parametrize("fields", [{b"b": b"\xc1"}, {b"x": b"y"}, {b"b": b""}])
async def test_what_does_not_decode_is_skipped_and_counted(
    reader: EventReader,
    writer: Writer,
    faults: Faults,
    redis_client: redis.asyncio.Redis,
    streams: RequestStreams,
    fields: Any,
) -> None:
    stream = open_stream(streams, "r1", "n1")
    await redis_client.xadd(reader.key, fields)
    last = await writer.write("n1", Accepted(request_id="r1", prompt_tokens=1))
    await _read_until(reader, last)
    assert stream.accepted
    assert [neuron for neuron, _ in faults] == ["n1"]


@pytest_asyncio.fixture
async def readers(
    redis_url: str,
    redis_client: redis.asyncio.Redis,
    streams: RequestStreams,
    faults: Faults,
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


async def accept(client: redis.asyncio.Redis, neuron: str, request_id: str) -> None:
    accepted = [Accepted(request_id=request_id, prompt_tokens=1)]
    batch = encode_event_batch(EventBatch(epoch="e", sequence_number=0, events=[*accepted]))
    key = keys.events_key(neuron, GATEWAY)
    await client.xadd(key, {EVENT_BATCH_FIELD: batch}, nomkstream=True)


async def is_read(
    client: redis.asyncio.Redis, streams: RequestStreams, neuron: str, request_id: str
) -> None:
    """Waits until a new request of the neuron is accepted through its stream."""
    stream = open_stream(streams, request_id, neuron)
    await accept(client, neuron, request_id)
    await until(lambda: stream.accepted)


@pytest.mark.parametrize("command", [("DEL",), ("SET", "x"), ("PEXPIRE", "-1")])
async def test_a_neuron_that_deletes_its_stream_fails_its_own_requests(
    readers: EventReaders,
    redis_client: redis.asyncio.Redis,
    streams: RequestStreams,
    faults: Faults,
    command: tuple[str, ...],
) -> None:
    await readers.ensure("n1")
    await readers.ensure("n2")
    own, other = open_stream(streams, "r1", "n1"), open_stream(streams, "r2", "n2")
    verb, *arguments = command
    await redis_client.execute_command(verb, keys.events_key("n1", GATEWAY), *arguments)
    await readers.upkeep(["n1", "n2"])
    with pytest.raises(ApiError) as raised:
        await own.next_events()
    assert raised.value.code == "events_lost"
    assert not other.ended
    assert ("n1", "its stream of events is gone") in faults
    assert {neuron for neuron, _ in faults} == {"n1"}
    await is_read(redis_client, streams, "n1", "r3")
    assert 0 < await redis_client.ttl(keys.events_key("n1", GATEWAY)) <= keys.EVENTS_EXPIRY_S
    await accept(redis_client, "n2", "r2")
    await until(lambda: other.accepted)


async def test_the_largest_id_stops_its_neuron_alone(
    readers: EventReaders, redis_client: redis.asyncio.Redis, streams: RequestStreams
) -> None:
    await readers.ensure("n1")
    await readers.ensure("n2")
    largest = f"{2**64 - 1}-{2**64 - 1}"
    await redis_client.xadd(keys.events_key("n1", GATEWAY), {b"x": b"y"}, id=largest)
    with pytest.raises(redis.ResponseError):
        await accept(redis_client, "n1", "r1")
    await readers.upkeep(["n1", "n2"])
    await is_read(redis_client, streams, "n2", "r2")


async def test_a_redis_that_lost_everything_fails_all_that_is_open(
    readers: EventReaders, redis_client: redis.asyncio.Redis, streams: RequestStreams
) -> None:
    await readers.ensure("n1")
    stream = open_stream(streams, "r1", "n1")
    await redis_client.flushdb()
    readers.redis_lost_everything()
    with pytest.raises(ApiError) as raised:
        await stream.next_events()
    assert raised.value.code == "redis_unavailable"
    await readers.upkeep(["n1"])
    await is_read(redis_client, streams, "n1", "r2")


async def test_a_reader_of_a_neuron_that_left_is_closed(
    readers: EventReaders,
    redis_client: redis.asyncio.Redis,
    streams: RequestStreams,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_reader, "IDLE_LIMIT_S", 0.0)
    await asyncio.gather(*(readers.ensure("n1") for _ in range(5)))
    await readers.upkeep(["n1"])
    assert readers.neurons == {"n1"}
    stream = open_stream(streams, "r1", "n1")
    await readers.upkeep([])
    assert readers.neurons == {"n1"}, "a request is open there"
    streams.remove(stream)
    await asyncio.sleep(0.01)
    await readers.upkeep([])
    assert not readers.neurons
    await readers.ensure("n1")
    await is_read(redis_client, streams, "n1", "r2")
    await readers.close()
    assert not await redis_client.exists(keys.events_key("n1", GATEWAY))
