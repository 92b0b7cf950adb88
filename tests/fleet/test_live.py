"""Reading heartbeats from a real Redis, both ways."""

from __future__ import annotations

import logging

import pytest
import redis
import redis.asyncio

from fleet import live
from fleet.errors import SnapshotUnavailableError
from inference.protocol import keys
from inference.protocol.heartbeat import NeuronHeartbeat, encode_heartbeat

NOWHERE = "redis://127.0.0.1:1/0"


def publish(client: redis.Redis, beat: NeuronHeartbeat) -> None:
    client.zadd(keys.NEURONS, {beat.name: beat.time_unix_s})
    client.set(keys.heartbeat_key(beat.name), encode_heartbeat(beat))


async def read_async(url: str):
    async with redis.asyncio.Redis.from_url(url) as client:
        return await live.read_snapshot(client)


async def test_both_ways_read_the_same(redis_url: str, redis_db, build) -> None:
    for name in ("b", "a"):
        publish(redis_db, build.heartbeat(name, replicas=[build.replica()]))
    snapshot = live.read_snapshot_sync(redis_db)
    assert [neuron.name for neuron in snapshot.neurons] == ["a", "b"]
    assert await read_async(redis_url) == snapshot


async def test_an_empty_fleet(redis_url: str, redis_db) -> None:
    assert live.read_snapshot_sync(redis_db).neurons == ()
    assert (await read_async(redis_url)).neurons == ()


def test_a_heartbeat_that_expired_is_a_neuron_that_is_away(redis_db, build) -> None:
    publish(redis_db, build.heartbeat("a"))
    publish(redis_db, build.heartbeat("b"))
    redis_db.delete(keys.heartbeat_key("a"))
    assert [neuron.name for neuron in live.read_snapshot_sync(redis_db).neurons] == ["b"]


def test_a_heartbeat_that_does_not_decode_is_named_and_left_out(redis_db, build, caplog) -> None:
    publish(redis_db, build.heartbeat("a"))
    redis_db.zadd(keys.NEURONS, {"b": 1.0})
    redis_db.set(keys.heartbeat_key("b"), b'{"name": "b"}')
    with caplog.at_level(logging.WARNING):
        snapshot = live.read_snapshot_sync(redis_db)
    assert [neuron.name for neuron in snapshot.neurons] == ["a"]
    assert "does not decode" in caplog.text


async def test_redis_away_is_one_error() -> None:
    with pytest.raises(SnapshotUnavailableError):
        live.read_snapshot_sync(redis.Redis.from_url(NOWHERE))
    with pytest.raises(SnapshotUnavailableError):
        await read_async(NOWHERE)
