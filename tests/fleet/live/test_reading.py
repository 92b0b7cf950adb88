"""Reading heartbeats from a real Redis, both ways."""

from __future__ import annotations

import logging

import pytest
import redis
import redis.asyncio

from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.absences import GRACE_S, Absences
from fleet.live.desired_state import (
    POLICY_FIELD,
    Admission,
    AdmissionPolicy,
    DesiredState,
    DesiredStates,
    encode_desired_states,
)
from fleet.live.snapshot import build_snapshot
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


async def test_both_ways_read_the_same(redis_url: str, redis_db, build) -> None:
    assert live.read_snapshot_sync(redis_db).neurons == ()
    assert (await read_async(redis_url)).neurons == ()
    for name in ("b", "a", "expired"):
        publish(redis_db, build.heartbeat(name, replicas=[build.replica()]))
    redis_db.delete(keys.heartbeat_key("expired"))
    snapshot = live.read_snapshot_sync(redis_db)
    assert [neuron.name for neuron in snapshot.neurons] == ["a", "b"]
    assert await read_async(redis_url) == snapshot


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


async def test_desired_states_come_with_the_heartbeats(redis_url: str, redis_db, build) -> None:
    for name in ("drained", "refused", "plain"):
        publish(redis_db, build.heartbeat(name))
    publish(redis_db, build.heartbeat("leaving", is_leaving=True))
    states = {
        "drained": DesiredState(drain=True),
        "refused": DesiredState(admission=Admission.REFUSED),
        "leaving": DesiredState(),
    }
    for policy in AdmissionPolicy:
        publish_desired(redis_db, policy, **states)
        snapshot = live.read_snapshot_sync(redis_db)
        assert await read_async(redis_url) == snapshot
        standing = {
            view.name: (view.is_draining, view.is_leaving, view.is_admitted)
            for view in snapshot.neurons
        }
        assert standing == {
            "drained": (True, False, True),
            "leaving": (True, True, True),
            "plain": (False, False, policy is AdmissionPolicy.AUTOMATIC),
            "refused": (False, False, False),
        }


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


def test_what_is_not_understood_of_desired_states_is_left_out(redis_db, build, caplog) -> None:
    publish_desired(redis_db, AdmissionPolicy.CLICK, a=DesiredState(drain=True))
    redis_db.hset(keys.NEURON_DESIRED_STATES, mapping={"b": b"{", POLICY_FIELD: b"none"})
    redis_db.set(keys.TIME_SLICES, b"{")
    found = live.read_snapshot_sync(redis_db)
    assert found.desired_states.by_neuron == {"a": DesiredState(drain=True)}
    assert found.desired_states.policy is AdmissionPolicy.AUTOMATIC and found.time_slices == ()
    for words in ("state of b is not", "policy 'none' is not"):
        assert words in caplog.text


def test_what_waits_at_a_gateway_is_read_without_what_does_not_decode(redis_db) -> None:
    redis_db.hset(keys.WAITING, mapping={"broken": b"{"})
    assert live.read_waiting(redis_db) == {}


def test_a_silent_neuron_is_absent_for_a_while(build) -> None:
    absences = Absences()
    seen, nobody = build_snapshot([build.heartbeat("a")]), build_snapshot([])
    assert absences.noted(seen, 0.0).absent == ()
    assert [one.name for one in absences.noted(nobody, GRACE_S - 1).absent] == ["a"]
    assert absences.noted(nobody, GRACE_S).absent == ()
    absences.noted(build_snapshot([build.heartbeat("a", is_leaving=True)]), 20.0)
    assert absences.noted(nobody, 21.0).absent == (), "it said so"


def test_a_neuron_that_was_invited_is_found_without_the_list_of_names(redis_db, build) -> None:
    """Its Redis user may not write that list."""
    beat = build.heartbeat("guest")
    redis_db.set(keys.heartbeat_key("guest"), encode_heartbeat(ordered(beat)))
    publish_desired(
        redis_db, AdmissionPolicy.AUTOMATIC, guest=DesiredState(), silent=DesiredState()
    )
    assert [view.name for view in live.read_snapshot_sync(redis_db).neurons] == ["guest"]


async def test_redis_away_is_one_error() -> None:
    with pytest.raises(SnapshotUnavailableError):
        live.read_snapshot_sync(redis.Redis.from_url(NOWHERE))
    with pytest.raises(SnapshotUnavailableError):
        await read_async(NOWHERE)
