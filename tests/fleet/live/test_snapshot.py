"""From heartbeats to the frozen fleet, and how long a load still takes."""

from __future__ import annotations

from typing import Any

import msgspec

from fleet.live.load_estimates import NO_ESTIMATE, LoadEstimate, load_estimate
from fleet.live.load_orders import LoadOrders
from fleet.live.snapshot import ReplicaView, build_snapshot, remaining_s
from inference.protocol.heartbeat import (
    PROTOCOL,
    HeldStageStatus,
    ReplicaStatus,
    decode_heartbeat,
    encode_heartbeat,
)
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.cases import each_case

GIB = 1024**3


def test_neurons_and_replicas_come_sorted_and_are_looked_up(build) -> None:
    beats = [
        build.heartbeat("b", replicas=[build.replica(model="y"), build.replica(model="x")]),
        build.heartbeat("a"),
    ]
    snapshot = build_snapshot(beats)
    assert [neuron.name for neuron in snapshot.neurons] == ["a", "b"]
    assert [replica.model for replica in snapshot.replicas()] == ["x", "y"]
    assert snapshot == build_snapshot(reversed(beats))
    neuron = snapshot.neuron("b")
    assert neuron is not None and snapshot.neuron("other") is None
    assert neuron.replica_of("x") is not None and neuron.replica_of("other") is None


def test_a_view_has_what_the_replica_and_its_engine_report(build) -> None:
    def viewed(**changes: Any) -> ReplicaView:
        (view,) = build_snapshot([build.heartbeat(replicas=[build.replica(**changes)])]).replicas()
        return view

    engine = build.stats(
        in_flight=3, queue_depth=2, kv_blocks_used=5, last_forward_unix_s=1_699_999_990.0
    )
    view = viewed(
        stats=engine,
        report=build.report(),
        spec_digest="12ab",
        devices=["cuda:1"],
        memory_bytes=GIB,
        capabilities=["chat", "tool_call"],
        max_output_tokens=128,
    )
    assert (view.in_flight, view.queue_depth, view.num_requests) == (3, 2, 5)
    assert (view.kv_blocks_used, view.kv_blocks_total, view.context_tokens) == (5, 64, 1024)
    assert (view.last_forward_age_s, view.status_age_s) == (10.0, 60.0)
    assert (view.spec_digest, view.devices, view.memory_bytes) == ("12ab", ("cuda:1",), GIB)
    assert (view.capabilities, view.max_output_tokens) == (("chat", "tool_call"), 128)
    idle = viewed(last_used_unix_s=1_699_999_970.0)
    assert idle.is_idle and idle.last_used_age_s == 30.0
    queued = viewed(stats=build.stats(queue_depth=1))
    assert not queued.is_idle and queued.last_used_age_s is None
    view = viewed(status=ReplicaStatus.LOADING)
    assert (view.num_requests, view.last_forward_age_s, view.context_tokens) == (0, None, None)


def test_eta_is_a_straight_line(build) -> None:
    progress = LoadProgress(stage=LoadStage.DOWNLOADING, done=75, total=100)
    loading = build.replica(status=ReplicaStatus.LOADING, progress=progress)
    (view,) = build_snapshot([build.heartbeat(replicas=[loading])]).replicas()
    assert view.eta_s == 20.0  # three quarters took 60 s
    ages = {"engine_since_unix_s": 1_699_999_970.0, "stage_since_unix_s": 1_699_999_994.0}
    loading = msgspec.structs.replace(loading, **ages)
    (view,) = build_snapshot([build.heartbeat(replicas=[loading])]).replicas()
    assert view.eta_s == 2.0, "of the stage alone"


@each_case(("elapsed_s", "done", "total"), [(10, 0, 100), (10, 5, 0), (10, 0, 0), (0, 50, 100)])
def test_without_a_rate_there_is_no_eta(elapsed_s: float, done: int, total: int) -> None:
    assert remaining_s(elapsed_s, done, total) is None


def test_a_neuron_of_another_protocol_is_sent_nothing(build) -> None:
    for protocol, whom in ((PROTOCOL - 1, "this host is"), (PROTOCOL + 1, "gateways and controls")):
        (view,) = build_snapshot([build.heartbeat(protocol=protocol)]).neurons
        assert not view.may_serve and not view.may_load
        assert f"protocol {protocol}" in view.problems[0] and whom in view.problems[0]
    encoded = encode_heartbeat(build.heartbeat()).replace(b'"protocol":%d,' % PROTOCOL, b"")
    assert decode_heartbeat(encoded).protocol == 1, "of before they were counted"


def test_a_held_stage_without_an_order_counts_for_nothing(build) -> None:
    """An invited host could make requests wait for a load that was never ordered."""
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


def at(stage: str, elapsed_s: float | None = None, *, done: int = 0, total: int = 0) -> Any:
    """An engine that started a second before this stage."""
    engine_s = None if elapsed_s is None or stage == "downloading" else elapsed_s + 1.0
    known = {"stage": stage, "done": done, "total": total, "stage_elapsed_s": elapsed_s}
    return known | {"engine_elapsed_s": engine_s}


@each_case(
    ("known", "last_load_s", "estimate"),
    [
        (at("preflight"), None, NO_ESTIMATE),
        (at("starting", 1.0), 40.0, LoadEstimate(share=0.05, left_s=38.0)),
        # The last load knows better than the stage's rate, unless it was shorter.
        (at("weights", 9.0, done=9, total=10), 40.0, LoadEstimate(share=0.25, left_s=30.0)),
        (at("weights", 45.0, done=9, total=10), 40.0, LoadEstimate(left_s=5.0)),
        (at("warmup", 49.0), 40.0, NO_ESTIMATE),
        (at("downloading", 10.0, done=25, total=100), 40.0, LoadEstimate(left_s=70.0)),
        (at("queued"), 40.0, NO_ESTIMATE),
        (at("waking", 1.0), 40.0, NO_ESTIMATE),
        (at("starting", -2.0), 40.0, LoadEstimate(share=0.0, left_s=40.0)),  # clocks differ
    ],
)
def test_estimates(
    known: dict[str, Any], last_load_s: float | None, estimate: LoadEstimate
) -> None:
    assert load_estimate(**known, last_load_s=last_load_s) == estimate
