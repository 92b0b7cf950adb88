"""Tests the way from heartbeats to the frozen fleet."""

from __future__ import annotations

import msgspec
import pytest

from fleet.live.load_orders import LoadOrders
from fleet.live.snapshot import build_snapshot, remaining_s
from inference.protocol.heartbeat import (
    PROTOCOL,
    HeldStage,
    HeldStageStatus,
    ReplicaStatus,
    decode_heartbeat,
    encode_heartbeat,
)
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.cases import each_case

GIB = 1024**3


def test_neurons_and_replicas_come_sorted(build) -> None:
    beats = [
        build.heartbeat("b", replicas=[build.replica(model="y"), build.replica(model="x")]),
        build.heartbeat("a"),
    ]
    snapshot = build_snapshot(beats)
    assert [neuron.name for neuron in snapshot.neurons] == ["a", "b"]
    assert [replica.model for replica in snapshot.replicas()] == ["x", "y"]
    assert snapshot == build_snapshot(reversed(beats))


def test_counters_come_from_the_engine(build) -> None:
    engine = build.stats(
        in_flight=3, queue_depth=2, kv_blocks_used=5, last_forward_unix_s=1_699_999_990.0
    )
    beat = build.heartbeat(replicas=[build.replica(stats=engine, report=build.report())])
    (view,) = build_snapshot([beat]).replicas_of("tiny")
    assert (view.in_flight, view.queue_depth, view.num_requests) == (3, 2, 5)
    assert (view.kv_blocks_used, view.kv_blocks_total) == (5, 64)
    assert view.last_forward_age_s == 10.0
    assert view.status_age_s == 60.0
    assert view.context_tokens == 1024


def test_a_view_reports_what_the_neuron_enforces(build) -> None:
    state = build.replica(capabilities=["chat", "tool_call"], max_output_tokens=128)
    (view,) = build_snapshot([build.heartbeat(replicas=[state])]).replicas()
    assert (view.capabilities, view.max_output_tokens) == (("chat", "tool_call"), 128)


def test_a_view_reports_where_a_replica_is_and_what_it_was_loaded_from(build) -> None:
    state = build.replica(
        spec_digest="12ab", devices=["cuda:1"], memory_bytes=GIB, last_used_unix_s=1_699_999_970.0
    )
    (view,) = build_snapshot([build.heartbeat(replicas=[state])]).replicas()
    assert (view.spec_digest, view.devices, view.memory_bytes) == ("12ab", ("cuda:1",), GIB)
    assert view.last_used_age_s == 30.0
    assert view.is_idle


def test_a_replica_that_has_something_queued_is_not_idle(build) -> None:
    state = build.replica(stats=build.stats(queue_depth=1))
    (view,) = build_snapshot([build.heartbeat(replicas=[state])]).replicas()
    assert not view.is_idle
    assert view.last_used_age_s is None


def test_without_stats_counters_are_zero(build) -> None:
    beat = build.heartbeat(replicas=[build.replica(status=ReplicaStatus.LOADING)])
    (view,) = build_snapshot([beat]).replicas()
    assert (view.num_requests, view.last_forward_age_s, view.context_tokens) == (0, None, None)


def test_eta_is_a_straight_line(build) -> None:
    progress = LoadProgress(stage=LoadStage.DOWNLOADING, done=75, total=100)
    loading = build.replica(status=ReplicaStatus.LOADING, progress=progress)
    (view,) = build_snapshot([build.heartbeat(replicas=[loading])]).replicas()
    assert view.eta_s == 20.0  # three quarters took 60 s


@each_case(("done", "total"), [(0, 100), (5, 0), (0, 0)])
def test_without_a_rate_there_is_no_eta(done: int, total: int) -> None:
    assert remaining_s(10.0, done, total) is None


def test_at_the_first_report_there_is_no_rate_yet() -> None:
    assert remaining_s(0.0, 50, 100) is None


def test_lookups(build) -> None:
    snapshot = build_snapshot([build.heartbeat(replicas=[build.replica()])])
    neuron = snapshot.neuron("beast")
    assert neuron is not None
    assert neuron.replica_of("tiny") is not None
    assert neuron.replica_of("other") is None
    assert snapshot.neuron("other") is None


@pytest.mark.parametrize(
    ("protocol", "whom"), [(PROTOCOL - 1, "this host is"), (PROTOCOL + 1, "gateways and controls")]
)
def test_a_neuron_of_another_protocol_is_sent_nothing(build, protocol: int, whom: str) -> None:
    (view,) = build_snapshot([build.heartbeat(protocol=protocol)]).neurons
    assert not view.may_serve and not view.may_load
    assert f"protocol {protocol}" in view.problems[0] and whom in view.problems[0]


def test_neurons_of_before_protocols_were_counted_speak_the_first(build) -> None:
    encoded = encode_heartbeat(build.heartbeat()).replace(b'"protocol":%d,' % PROTOCOL, b"")
    assert decode_heartbeat(encoded).protocol == 1


def test_a_held_stage_without_an_order_counts_for_nothing(build) -> None:
    """An invited host could make requests wait for a load that was never ordered."""
    orders = LoadOrders("the fleet's key")
    stage = HeldStage(
        model="large",
        job_id="job",
        order=orders.order(neuron="beast", model="large"),
        engine_neuron="attic",
        index=1,
        num_stages=2,
        layers=(20, 32),
        device="cuda:0",
        status=HeldStageStatus.LISTENING,
        since_unix_s=0.0,
    )
    beat = build.heartbeat(stages=[stage], stage_host="10.0.0.5")
    assert orders.ordered(beat) == (beat, [])
    (view,) = build_snapshot([beat]).held_stages()
    assert (view.neuron, view.stage) == ("beast", stage) and view.status_age_s > 0
    forged = msgspec.structs.replace(stage, model="other")
    kept, others = orders.ordered(msgspec.structs.replace(beat, stages=[stage, forged]))
    assert kept.stages == [stage] and others == ["other"]
