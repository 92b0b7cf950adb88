"""From heartbeats in Redis, read both ways, to the frozen fleet; what a load still takes."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
import redis
import redis.asyncio

from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.desired_state import (
    POLICY_FIELD,
    Admission,
    AdmissionPolicy,
    DesiredState,
    DesiredStates,
    encode_desired_states,
)
from fleet.live.reports import LoadOrders
from fleet.live.snapshot import (
    LoadEstimate,
    ReplicaView,
    build_snapshot,
    load_estimate,
    remaining_s,
)
from inference.protocol import keys
from inference.protocol.heartbeat import (
    PROTOCOL,
    HeldStageStatus,
    ReplicaStatus,
    decode_heartbeat,
    encode_heartbeat,
)
from inference.protocol.load_report import LoadProgress, LoadStage
from tests.fleet.conftest import GIB, NOW_UNIX_S


def test_neurons_and_replicas_come_sorted_and_views_have_what_is_reported(build) -> None:
    def viewed(**changes: Any) -> ReplicaView:
        beat = build.heartbeat(replicas=[build.replica(**changes)])
        (view,) = build_snapshot([beat]).replicas_of("tiny")
        return view

    beats = [
        build.heartbeat("b", replicas=[build.replica(model="y"), build.replica(model="x")]),
        build.heartbeat("a"),
    ]
    snapshot = build_snapshot(beats)
    assert [neuron.name for neuron in snapshot.neurons] == ["a", "b"]
    assert [replica.model for replica in snapshot.replicas()] == ["x", "y"]
    assert snapshot == build_snapshot(reversed(beats))
    neuron = snapshot.neurons[1]
    assert (snapshot.neuron("b"), snapshot.neuron("other")) == (neuron, None)
    assert neuron.replica_of("x") and neuron.replica_of("other") is None
    counters = {"in_flight": 3, "queue_depth": 2, "kv_blocks_used": 5}
    engine = build.stats(**counters, last_forward_unix_s=NOW_UNIX_S - 10)
    values = {"spec_digest": "12ab", "memory_bytes": GIB, "max_output_tokens": 128}
    lists = {"devices": ["cuda:1"], "capabilities": ["chat", "tool_call"]}
    used = {"last_used_unix_s": NOW_UNIX_S - 30}
    view = viewed(stats=engine, report=build.report(), **values, **lists, **used)
    expected = counters | values | {name: tuple(words) for name, words in lists.items()}
    expected |= {"num_requests": 5, "kv_blocks_total": 64, "context_tokens": 1024}
    expected |= {"last_forward_age_s": 10.0, "status_age_s": 60.0, "last_used_age_s": 30.0}
    assert {name: getattr(view, name) for name in expected} == expected and not view.is_idle
    assert viewed().is_idle and viewed().last_used_age_s is None
    assert not viewed(stats=build.stats(queue_depth=1)).is_idle
    progress = LoadProgress(stage=LoadStage.DOWNLOADING, done=75, total=100)
    loading = {"status": ReplicaStatus.LOADING, "progress": progress}
    view = viewed(**loading)
    assert (view.num_requests, view.last_forward_age_s, view.context_tokens) == (0, None, None)
    assert view.eta_s == 20.0  # three quarters took 60 s
    ages = {"engine_since_unix_s": NOW_UNIX_S - 30, "stage_since_unix_s": NOW_UNIX_S - 6}
    assert viewed(**loading, **ages).eta_s == 2.0, "of the stage alone"
    for elapsed_s, done, total in ((10, 0, 100), (10, 5, 0), (10, 0, 0), (0, 50, 100)):
        assert remaining_s(elapsed_s, done, total) is None
    # Estimates of a load that took 40 s when it was last loaded there.
    nearly: dict[str, Any] = {"stage": "weights", "done": 9, "total": 10}
    for known, share, left_s in (
        ({"stage": "preflight", "last_load_s": None}, None, None),
        ({"stage": "starting", "engine_elapsed_s": 2.0}, 0.05, 38.0),
        # Its last load knows better than the stage's rate.
        (nearly | {"stage_elapsed_s": 9.0, "engine_elapsed_s": 10.0}, 0.25, 30.0),
        # It takes longer than the last one, and has no rate.
        (nearly | {"stage_elapsed_s": 45.0, "engine_elapsed_s": 50.0}, None, 5.0),
        ({"stage": "warmup", "engine_elapsed_s": 50.0}, None, None),
        # The load comes after the download.
        ({"stage": "downloading", "stage_elapsed_s": 10.0, "done": 25, "total": 100}, None, 70.0),
        ({"stage": "queued"}, None, None),  # nobody knows when its turn comes
        ({"stage": "waking", "engine_elapsed_s": 2.0}, None, None),
        ({"stage": "starting", "engine_elapsed_s": -1.0}, 0.0, 40.0),  # clocks differ
    ):
        nothing = {"done": 0, "total": 0, "stage_elapsed_s": None, "engine_elapsed_s": None}
        estimate = load_estimate(**{**nothing, "last_load_s": 40.0, **known})
        assert estimate == LoadEstimate(share=share, left_s=left_s), known


def test_a_neuron_of_another_protocol_is_sent_nothing_and_a_stage_needs_an_order(build) -> None:
    """An invited host could make requests wait for a load that was never ordered."""
    for protocol, whom in ((PROTOCOL - 1, "this host is"), (PROTOCOL + 1, "gateways and controls")):
        (view,) = build_snapshot([build.heartbeat(protocol=protocol)]).neurons
        assert not view.may_serve and not view.may_load
        assert f"protocol {protocol}" in view.problems[0] and whom in view.problems[0]
    encoded = encode_heartbeat(build.heartbeat()).replace(b'"protocol":%d,' % PROTOCOL, b"")
    assert decode_heartbeat(encoded).protocol == 1, "of before they were counted"
    orders = LoadOrders("the fleet's key")
    order = orders.order(neuron="beast", model="large")
    stage = build.stage(order=order, status=HeldStageStatus.LISTENING)
    beat = build.heartbeat(stages=[stage], stage_host="10.0.0.5")
    assert orders.ordered(beat) == (beat, [])
    (view,) = build_snapshot([beat]).held_stages()
    assert (view.neuron, view.stage) == ("beast", stage) and view.status_age_s > 0
    forged = msgspec.structs.replace(stage, model="other")
    kept, others = orders.ordered(msgspec.structs.replace(beat, stages=[stage, forged]))
    assert kept.stages == [stage] and others == ["other"]


async def read_async(url: str):
    async with redis.asyncio.Redis.from_url(url) as client:
        return await live.read_snapshot(client)


async def test_both_ways_read_heartbeats_and_desired_states(redis_url, redis_db, publish) -> None:
    assert live.read_snapshot_sync(redis_db) == await read_async(redis_url)
    for name in ("drained", "refused", "plain", "leaving", "guest", "expired"):
        publish(name, is_leaving=name == "leaving")
    redis_db.delete(keys.heartbeat_key("expired"))
    redis_db.zrem(keys.NEURONS, "guest")  # its Redis user may not write the list of names
    states = {
        "drained": DesiredState(drain=True),
        "refused": DesiredState(admission=Admission.REFUSED),
        **dict.fromkeys(("leaving", "guest", "silent"), DesiredState()),
    }
    for policy in AdmissionPolicy:
        publish_desired(redis_db, policy, **states)
        snapshot = live.read_snapshot_sync(redis_db)
        assert await read_async(redis_url) == snapshot
        assert {
            view.name: (view.is_draining, view.is_leaving, view.is_admitted)
            for view in snapshot.neurons
        } == {
            "drained": (True, False, True),
            "guest": (False, False, True),
            "leaving": (True, True, True),
            "plain": (False, False, policy is AdmissionPolicy.AUTOMATIC),
            "refused": (False, False, False),
        }
    redis_db.delete(keys.NEURON_DESIRED_STATES)  # what was read outlives a Redis that lost it
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert "guest" not in {one.name for one in (await live.read_snapshot(client)).neurons}
        redis_db.zadd(keys.NEURONS, {"guest": 1.0})
        assert await live.read_snapshot(client, before=snapshot) == snapshot
    nowhere = "redis://127.0.0.1:1/0"
    with pytest.raises(SnapshotUnavailableError):
        live.read_snapshot_sync(redis.Redis.from_url(nowhere))
    with pytest.raises(SnapshotUnavailableError):
        await read_async(nowhere)


def test_what_is_malformed_or_anothers_is_left_out(redis_db, publish, build, caplog) -> None:
    publish("a")
    another = encode_heartbeat(build.heartbeat("a", epoch="other"))
    for payload, reason in ((b'{"name": "b"}', ""), (another, ": it calls itself 'a'")):
        redis_db.zadd(keys.NEURONS, {"b": 1.0})
        redis_db.set(keys.heartbeat_key("b"), payload)
        with caplog.at_level(logging.WARNING):
            (view,) = live.read_snapshot_sync(redis_db).neurons
        assert (view.name, view.epoch) == ("a", "epoch-1")
        assert f"neuron b: its report is refused{reason}" in caplog.text
    publish_desired(redis_db, AdmissionPolicy.CLICK, a=DesiredState(drain=True))
    redis_db.hset(keys.NEURON_DESIRED_STATES, mapping={"b": b"{", POLICY_FIELD: b"none"})
    redis_db.set(keys.TIME_SLICES, b"{")
    found = live.read_snapshot_sync(redis_db)
    assert found.desired_states.by_neuron == {"a": DesiredState(drain=True)}
    assert found.desired_states.policy is AdmissionPolicy.AUTOMATIC and found.time_slices == ()
    for words in ("state of b is not", "policy 'none' is not"):
        assert words in caplog.text
    redis_db.hset(keys.WAITING, mapping={"broken": b"{"})
    assert live.read_waiting(redis_db) == {}


def publish_desired(client: redis.Redis, policy: AdmissionPolicy, **states: DesiredState) -> None:
    fields = encode_desired_states(DesiredStates(by_neuron=states, policy=policy))
    client.hset(keys.NEURON_DESIRED_STATES, mapping=fields)
