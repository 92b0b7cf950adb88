"""Reading events within bounds, whatever a neuron has written."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
import redis.asyncio

from inference.gateway import event_reader
from inference.gateway.event_reader import EventReader
from inference.gateway.redis_link import RedisLink
from inference.gateway.streams import RequestStream, RequestStreams
from inference.gateway.tally import Tally
from inference.protocol import keys
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    Accepted,
    Delta,
    Event,
    EventBatch,
    encode_event_batch,
)
from inference.wire.errors import ApiError

GENEROUS_S = 60.0
MAX_REPLY_BYTES = 400_000
GATEWAY = "g1"
KEY = keys.gateway_events_key(GATEWAY)


class Writer:
    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._numbers: dict[str, int] = {}

    async def write(self, neuron: str, *events: Event) -> str:
        number = self._numbers.get(neuron, 0)
        self._numbers[neuron] = number + 1
        batch = EventBatch(neuron=neuron, epoch="e", sequence_number=number, events=list(events))
        entry_id = await self._client.xadd(KEY, {EVENT_BATCH_FIELD: encode_event_batch(batch)})
        return bytes(entry_id).decode()


@pytest.fixture
def writer(redis_client: redis.asyncio.Redis) -> Writer:
    return Writer(redis_client)


@pytest.fixture
def streams() -> RequestStreams:
    return RequestStreams()


@pytest.fixture
def open_stream(streams: RequestStreams) -> Callable[[str, str], RequestStream]:
    def opened(request_id: str, neuron: str) -> RequestStream:
        stream = RequestStream(
            request_id=request_id,
            neuron=neuron,
            epoch="e",
            model="tiny",
            first_token_timeout_s=GENEROUS_S,
            abort=lambda: None,
            tally=Tally(),
        )
        streams.add(stream)
        return stream

    return opened


@pytest_asyncio.fixture
async def reader(redis_url: str, streams: RequestStreams) -> AsyncIterator[EventReader]:
    link = RedisLink(redis_url, timeout_s=GENEROUS_S, max_reply_bytes=MAX_REPLY_BYTES)
    made = EventReader(link, GATEWAY, streams, stall_limit_s=GENEROUS_S)
    yield made
    await link.aclose()


async def _read_until(reader: EventReader, entry_id: str) -> None:
    reading = asyncio.create_task(reader.run())
    try:
        async with asyncio.timeout(GENEROUS_S):
            while reader.last_entry_id != entry_id:
                await asyncio.sleep(0.01)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def _deltas(stream: RequestStream, number: int, num_chars: int) -> list[Delta]:
    text = "x" * num_chars
    return [Delta(request_id=stream.request_id, text=f"{n}:{text}") for n in range(number)]


async def test_what_is_more_than_one_reads_bound_is_read_in_several(
    reader: EventReader, writer: Writer, open_stream: Callable[[str, str], RequestStream]
) -> None:
    stream = open_stream("r1", "n1")
    last = await writer.write("n1", Accepted(request_id="r1", prompt_tokens=1))
    deltas = _deltas(stream, 40, 60_000)
    for delta in deltas:
        last = await writer.write("n1", delta)
    await _read_until(reader, last)
    _, *read = await stream.next_events()
    assert read == deltas


async def test_an_entry_over_the_bound_fails_its_own_neurons_requests_alone(
    reader: EventReader, writer: Writer, open_stream: Callable[[str, str], RequestStream]
) -> None:
    honest, greedy = open_stream("r1", "n1"), open_stream("r2", "n2")
    await writer.write("n1", Accepted(request_id="r1", prompt_tokens=1))
    await writer.write("n2", Accepted(request_id="r2", prompt_tokens=1))
    await writer.write("n2", Delta(request_id="r2", text="x" * 2 * MAX_REPLY_BYTES))
    await writer.write("n1", Delta(request_id="r1", text="fine"))
    last = await writer.write("n2", Delta(request_id="r2", text="more"))
    await _read_until(reader, last)
    assert [type(event) for event in await honest.next_events()] == [Accepted, Delta]
    await greedy.next_events()
    with pytest.raises(ApiError) as raised:
        await greedy.next_events()
    assert raised.value.code == "events_lost"
    assert not honest.ended


async def test_other_tasks_run_between_large_batches(
    reader: EventReader,
    writer: Writer,
    open_stream: Callable[[str, str], RequestStream],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes that were decoded since the loop last ran something else stay within a turn's."""
    monkeypatch.setattr(event_reader, "BYTES_A_TURN", 50_000)
    stream = open_stream("r1", "n1")
    last = await writer.write("n1", Accepted(request_id="r1", prompt_tokens=1))
    for delta in _deltas(stream, 6, 30_000):
        last = await writer.write("n1", delta)
    seen: list[int] = []

    async def count_queued() -> None:
        while True:
            seen.append(len(stream._events))
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_queued())
    await _read_until(reader, last)
    counting.cancel()
    steps = [after - before for before, after in itertools.pairwise(seen)]
    assert sum(steps) == 7
    assert max(steps) <= 3
