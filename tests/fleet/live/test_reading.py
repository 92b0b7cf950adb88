"""Reading heartbeats from a real Redis, both ways."""

from __future__ import annotations

import logging

import pytest
import redis
import redis.asyncio

from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.desired_state import (
    Admission,
    AdmissionPolicy,
    DesiredState,
    DesiredStates,
    encode_desired_states,
)
from inference.protocol import keys
from inference.protocol.heartbeat import NeuronHeartbeat, encode_heartbeat
from tests.fleet.ordered import ordered

NOWHERE = "redis://127.0.0.1:1/0"


def publish(client: redis.Redis, beat: NeuronHeartbeat) -> None:
    client.zadd(keys.NEURONS, {beat.name: beat.time_unix_s})
    client.set(keys.heartbeat_key(beat.name), encode_heartbeat(ordered(beat)))


async def read_async(url: str):
    async with redis.asyncio.Redis.from_url(url) as client:
        return await live.read_snapshot(client)


def test_a_heartbeat_that_is_malformed_or_anothers_is_named_and_left_out(
    redis_db, build, caplog
) -> None:
    publish(redis_db, build.heartbeat("a"))
    another = encode_heartbeat(build.heartbeat("a", epoch="other"))
    for payload, reason in ((b'{"name": "b"}', ""), (another, ": it calls itself 'a'")):
        redis_db.zadd(keys.NEURONS, {"b": 1.0})
        redis_db.set(keys.heartbeat_key("b"), payload)
        with caplog.at_level(logging.WARNING):
            (view,) = live.read_snapshot_sync(redis_db).neurons
        assert (view.name, view.epoch) == ("a", "epoch-1")
        assert f"neuron b: its report is refused{reason}" in caplog.text


def publish_desired(client: redis.Redis, policy: AdmissionPolicy, **states: DesiredState) -> None:
    fields = encode_desired_states(DesiredStates(by_neuron=states, policy=policy))
    client.hset(keys.NEURON_DESIRED_STATES, mapping=fields)


async def test_both_ways_read_heartbeats_with_what_is_desired(
    redis_url: str, redis_db, build
) -> None:
    assert live.read_snapshot_sync(redis_db).neurons == ()
    assert (await read_async(redis_url)).neurons == ()
    for name in ("refused", "plain", "drained", "guest", "expired"):
        publish(redis_db, build.heartbeat(name, replicas=[build.replica()]))
    publish(redis_db, build.heartbeat("leaving", is_leaving=True))
    redis_db.zrem(keys.NEURONS, "guest")  # it was invited: its Redis user may not write that list
    redis_db.delete(keys.heartbeat_key("expired"))
    publish_desired(
        redis_db,
        AdmissionPolicy.AUTOMATIC,
        drained=DesiredState(drain=True),
        refused=DesiredState(admission=Admission.REFUSED),
        guest=DesiredState(),
        silent=DesiredState(),
    )
    snapshot = live.read_snapshot_sync(redis_db)
    assert await read_async(redis_url) == snapshot
    assert [
        (view.name, view.is_draining, view.is_leaving, view.is_admitted)
        for view in snapshot.neurons
    ] == [
        ("drained", True, False, True),
        ("guest", False, False, True),
        ("leaving", True, True, True),
        ("plain", False, False, True),
        ("refused", False, False, False),
    ]


def test_by_click_a_neuron_that_nobody_knows_is_not_admitted(redis_db, build) -> None:
    publish(redis_db, build.heartbeat("known"))
    publish(redis_db, build.heartbeat("new"))
    publish_desired(redis_db, AdmissionPolicy.CLICK, known=DesiredState())
    admitted = {view.name: view.is_admitted for view in live.read_snapshot_sync(redis_db).neurons}
    assert admitted == {"known": True, "new": False}


async def test_desired_states_outlive_a_redis_that_lost_them(
    redis_url: str, redis_db, build
) -> None:
    publish(redis_db, build.heartbeat("a"))
    publish_desired(redis_db, AdmissionPolicy.CLICK, a=DesiredState(drain=True))
    before = await read_async(redis_url)
    redis_db.delete(keys.NEURON_DESIRED_STATES)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        after = await live.read_snapshot(client, before=before)
    assert after == before
    assert after.neurons[0].is_draining


async def test_redis_away_is_one_error() -> None:
    with pytest.raises(SnapshotUnavailableError):
        live.read_snapshot_sync(redis.Redis.from_url(NOWHERE))
    with pytest.raises(SnapshotUnavailableError):
        await read_async(NOWHERE)
