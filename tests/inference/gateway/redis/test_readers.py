"""A gateway's streams of events: made for each neuron, kept, and made again where they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import redis.asyncio

from inference.gateway.redis import event_reader
from inference.gateway.redis.event_reader import EventReaders
from inference.gateway.request.event_stream import RequestStreams
from inference.protocol import keys
from inference.protocol.events import (
    EVENT_BATCH_FIELD,
    Accepted,
    EventBatch,
    encode_event_batch,
)
from inference.redis_link import RedisLink
from inference.wire.errors import ApiError
from tests.inference.gateway.answers import open_stream
from tests.inference.gateway.redis.conftest import GATEWAY, GENEROUS_S, Faults
from tests.inference.gateway.waiting import until


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
    batch = EventBatch(
        epoch="e", sequence_number=0, events=[Accepted(request_id=request_id, prompt_tokens=1)]
    )
    await client.xadd(
        keys.events_key(neuron, GATEWAY),
        {EVENT_BATCH_FIELD: encode_event_batch(batch)},
        nomkstream=True,
    )


async def is_read(
    client: redis.asyncio.Redis, streams: RequestStreams, neuron: str, request_id: str
) -> None:
    """Waits until a new request of the neuron is accepted through its stream."""
    stream = open_stream(streams, request_id, neuron)
    await accept(client, neuron, request_id)
    await until(lambda: stream.accepted)


async def test_each_neuron_has_a_stream_that_expires(
    readers: EventReaders, redis_client: redis.asyncio.Redis, streams: RequestStreams
) -> None:
    await asyncio.gather(*(readers.ensure("n1") for _ in range(5)), readers.ensure("n2"))
    for neuron in ("n1", "n2"):
        assert 0 < await redis_client.ttl(keys.events_key(neuron, GATEWAY)) <= keys.EVENTS_EXPIRY_S
        await is_read(redis_client, streams, neuron, f"r-{neuron}")
    await readers.close()
    assert not await redis_client.exists(*(keys.events_key(n, GATEWAY) for n in ("n1", "n2")))


@pytest.mark.parametrize("command", [("DEL",), ("SET", "x"), ("EXPIRE", "0"), ("PEXPIRE", "-1")])
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
    await readers.ensure("n1")
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
