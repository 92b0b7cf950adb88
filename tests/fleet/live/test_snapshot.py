"""From heartbeats to the frozen fleet, and how long a load still takes."""

from __future__ import annotations

from typing import Any

import msgspec

from fleet.live.load_estimates import LoadEstimate, load_estimate
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


def test_neurons_and_replicas_come_sorted(build) -> None:
    beats = [
        build.heartbeat("b", replicas=[build.replica(model="y"), build.replica(model="x")]),
        build.heartbeat("a"),
    ]
    snapshot = build_snapshot(beats)
    assert [neuron.name for neuron in snapshot.neurons] == ["a", "b"]
    assert [replica.model for replica in snapshot.replicas()] == ["x", "y"]
    assert snapshot == build_snapshot(reversed(beats))
    (neuron,) = (one for one in snapshot.neurons if one.name == "b")
    assert (snapshot.neuron("b"), snapshot.neuron("other")) == (neuron, None)
    assert neuron.replica_of("x") and neuron.replica_of("other") is None


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


def test_a_view_reports_where_a_replica_is_and_what_its_neuron_enforces(build) -> None:
    def viewed(**changes) -> ReplicaView:
        (view,) = build_snapshot([build.heartbeat(replicas=[build.replica(**changes)])]).replicas()
        return view

    view = viewed(
        spec_digest="12ab",
        devices=["cuda:1"],
        memory_bytes=GIB,
        last_used_unix_s=1_699_999_970.0,
        capabilities=["chat", "tool_call"],
        max_output_tokens=128,
    )
    assert (view.spec_digest, view.devices, view.memory_bytes) == ("12ab", ("cuda:1",), GIB)
    assert (view.capabilities, view.max_output_tokens) == (("chat", "tool_call"), 128)
    assert view.last_used_age_s == 30.0
    assert view.is_idle
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


RATE = {"done": 9, "total": 10}


@each_case(
    ("what", "known", "share", "left_s"),
    [
        ("nothing is known", {"stage": "preflight", "last_load_s": None}, None, None),
        ("an engine that starts", {"stage": "starting", "engine_elapsed_s": 2.0}, 0.05, 38.0),
        (
            "its last load knows better than the stage's rate",
            {"stage": "weights", "stage_elapsed_s": 9.0, "engine_elapsed_s": 10.0, **RATE},
            0.25,
            30.0,
        ),
        (
            "it takes longer than the last one",
            {"stage": "weights", "stage_elapsed_s": 45.0, "engine_elapsed_s": 50.0, **RATE},
            None,
            5.0,
        ),
        ("and has no rate", {"stage": "warmup", "engine_elapsed_s": 50.0}, None, None),
        (
            "the load comes after the download",
            {"stage": "downloading", "stage_elapsed_s": 10.0, "done": 25, "total": 100},
            None,
            70.0,
        ),
        ("nobody knows when its turn comes", {"stage": "queued"}, None, None),
        ("waking is no load", {"stage": "waking", "engine_elapsed_s": 2.0}, None, None),
        ("clocks that differ", {"stage": "starting", "engine_elapsed_s": -1.0}, 0.0, 40.0),
    ],
)
def test_estimates(what: str, known: dict[str, Any], share: Any, left_s: Any) -> None:
    """Of a load that took 40 s when it was last loaded there."""
    nothing = {"done": 0, "total": 0, "stage_elapsed_s": None, "engine_elapsed_s": None}
    estimate = load_estimate(**{**nothing, "last_load_s": 40.0, **known})
    assert estimate == LoadEstimate(share=share, left_s=left_s), what
