"""Placement's order of preference, case by case."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from fleet import placement
from fleet.live.snapshot import NeuronView
from fleet.placement import FAILED_LOAD_BACKOFF_S, Decision, Load, Reject, Route, Wait
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from tests.cases import each_case
from tests.fleet.placement.placing import (
    DRAINING,
    FAILED,
    GIB,
    LOADING,
    MEASURED,
    READY,
    RECOVERING,
    TINY,
    decide,
    neuron,
    replica,
    took,
)

TABLE = {
    "a ready replica": (
        [neuron("a", replica("a", READY))],
        Route(neuron="a", model="tiny"),
    ),
    "the least busy, queue included": (
        [
            neuron("a", replica("a", READY, in_flight=1, queue_depth=3)),
            neuron("b", replica("b", READY, in_flight=3)),
        ],
        Route(neuron="b", model="tiny"),
    ),
    "equally busy: by name": (
        [
            neuron("b", replica("b", READY, in_flight=1)),
            neuron("a", replica("a", READY, queue_depth=1)),
        ],
        Route(neuron="a", model="tiny"),
    ),
    "ready before loading": (
        [neuron("a", replica("a", LOADING)), neuron("b", replica("b", READY, in_flight=99))],
        Route(neuron="b", model="tiny"),
    ),
    "a load under way before another load": (
        [neuron("a", replica("a", LOADING)), neuron("b", free_gib=60)],
        Wait(neuron="a", model="tiny", reason="tiny is loading on a"),
    ),
    "recovering is waited for": (
        [neuron("a", replica("a", RECOVERING))],
        Wait(neuron="a", model="tiny", reason="tiny is recovering on a"),
    ),
    "the load that is ready soonest": (
        [
            neuron("a", replica("a", LOADING)),
            neuron(
                "b",
                replica(
                    "b",
                    LOADING,
                    status_age_s=10.0,
                    progress=LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=2),
                ),
            ),
        ],
        Wait(neuron="b", model="tiny", reason="tiny is loading on b (weights 50%)", eta_s=10.0),
    ),
    "load where most memory is free": (
        [neuron("a", free_gib=4), neuron("b", free_gib=5)],
        Load(neuron="b", model="tiny", devices=("cpu",)),
    ),
    "equal memory: by name": (
        [neuron("b"), neuron("a")],
        Load(neuron="a", model="tiny", devices=("cpu",)),
    ),
    "another model's replica is no obstacle": (
        [neuron("a", replica("a", READY, model="other"))],
        Load(neuron="a", model="tiny", devices=("cpu",)),
    ),
    "elsewhere after a recent failure": (
        [neuron("a", replica("a", FAILED), free_gib=60), neuron("b")],
        Load(neuron="b", model="tiny", devices=("cpu",)),
    ),
    "an old failure is tried again": (
        [neuron("a", replica("a", FAILED, status_age_s=FAILED_LOAD_BACKOFF_S))],
        Load(neuron="a", model="tiny", devices=("cpu",)),
    ),
    "a recent failure is reported": (
        [
            neuron(
                "a",
                replica("a", FAILED, failure=LoadFailure(code="does_not_fit", message="too big")),
            )
        ],
        Reject(
            code="load_failed",
            message="Loading tiny failed on a: too big",
            retry_after_s=FAILED_LOAD_BACKOFF_S - 5.0,
            model_id="pypi:tiny",
            suggestion="Unload another model, or load a smaller quant.",
        ),
    ),
    "draining is left alone when another neuron can": (
        [neuron("a", replica("a", DRAINING), free_gib=60), neuron("b")],
        Load(neuron="b", model="tiny", devices=("cpu",)),
    ),
    "draining is waited for when no other can": (
        [neuron("a", replica("a", DRAINING))],
        Wait(neuron="a", model="tiny", reason="tiny is draining on a"),
    ),
    "several draining: by name, whatever their order": (
        [neuron("b", replica("b", DRAINING)), neuron("a", replica("a", DRAINING))],
        Wait(neuron="a", model="tiny", reason="tiny is draining on a"),
    ),
    "an empty fleet": (
        [],
        Reject(
            code="no_neuron",
            message="No neuron that could run tiny is online",
            retry_after_s=placement.NO_NEURON_RETRY_AFTER_S,
        ),
    ),
    "a neuron without devices": (
        [neuron("a", devices=0)],
        Reject(
            code="no_neuron",
            message="No neuron that could run tiny is online",
            retry_after_s=placement.NO_NEURON_RETRY_AFTER_S,
        ),
    ),
}


@each_case(("neurons", "expected"), TABLE.values(), ids=TABLE.keys())
def test_order_of_preference(neurons: list[NeuronView], expected: Decision) -> None:
    assert decide(*neurons) == expected


def test_a_measured_model_goes_only_where_it_fits() -> None:
    assert decide(neuron("a", free_gib=3), neuron("b", free_gib=4), entry=MEASURED) == Load(
        neuron="b", model="tiny", devices=("cpu",)
    )


def test_configured_kv_memory_counts() -> None:
    entry = replace(MEASURED, kv_memory_bytes=2 * GIB)
    assert isinstance(decide(neuron("a", free_gib=5), entry=entry), Reject)
    assert isinstance(decide(neuron("a", free_gib=6), entry=entry), Load)


def test_a_refusal_names_the_limit_that_an_operator_set() -> None:
    there = neuron("a", free_gib=1)
    for total_gib, code in ((6, "not_enough_memory"), (2, "exceeds_device")):
        limited = msgspec.structs.replace(
            there.devices[0],
            total_memory_bytes=total_gib * GIB,
            installed_memory_bytes=24 * GIB,
        )
        decision = decide(replace(there, devices=(limited,)), entry=MEASURED)
        assert isinstance(decision, Reject)
        assert decision.code == code
        assert "by its HELEXA_MEMORY_LIMIT" in decision.message


def test_not_enough_memory_reports_both_numbers() -> None:
    decision = decide(neuron("a", free_gib=1), neuron("b", free_gib=3), entry=MEASURED)
    assert isinstance(decision, Reject)
    assert decision.code == "not_enough_memory"
    assert f"{4 * GIB:,}" in decision.message
    assert f"{3 * GIB:,}" in decision.message


def test_what_a_load_took_outweighs_the_size_of_the_files() -> None:
    entry = replace(MEASURED, measured_loads=(took("a", 6.0),))
    assert isinstance(decide(neuron("a", free_gib=5), entry=entry), Reject)
    assert isinstance(decide(neuron("a", free_gib=6), entry=entry), Load)


def test_each_neuron_goes_by_its_own_loads_others_by_the_largest() -> None:
    entry = replace(TINY, measured_loads=(took("a", 3.0), took("b", 6.0)))
    assert isinstance(decide(neuron("a", free_gib=4), entry=entry), Load)
    assert isinstance(decide(neuron("b", free_gib=4), entry=entry), Reject)
    assert isinstance(decide(neuron("new", free_gib=4), entry=entry), Reject)
    assert isinstance(decide(neuron("new", free_gib=6), entry=entry), Load)


def test_a_loads_memory_on_a_card_is_no_measure_for_a_processor() -> None:
    entry = replace(TINY, measured_loads=(took("a", 60.0, "cuda"),))
    assert isinstance(decide(neuron("a", free_gib=4), entry=entry), Load)


def test_the_neuron_that_comes_closest_is_named() -> None:
    entry = replace(TINY, measured_loads=(took("a", 5.0), took("b", 9.0)))
    decision = decide(neuron("a", free_gib=2), neuron("b", free_gib=7), entry=entry)
    assert isinstance(decision, Reject)
    assert f"needs {9 * GIB:,} bytes of free memory on b" in decision.message


@each_case(
    ("stage", "ages", "waits"),
    [
        # Of a download that is at a quarter after 100 s.
        (LoadStage.DOWNLOADING, {"status_age_s": 100.0}, ("downloading 25%", 300.0)),
        # The weights are at a quarter 2 s after the engine began, whatever came before it.
        (LoadStage.WEIGHTS, {"status_age_s": 600.0, "engine_age_s": 2.0}, ("weights 25%", 6.0)),
    ],
)
def test_a_first_load_reports_its_stages_share_and_seconds(
    stage: LoadStage, ages: dict[str, float], waits: tuple[str, float]
) -> None:
    progress = LoadProgress(stage=stage, done=1, total=4, unit="bytes")
    loading = replica("a", LOADING, progress=progress, **ages)
    words, eta_s = waits
    reason = f"tiny is loading on a ({words})"
    assert decide(neuron("a", loading)) == Wait(
        neuron="a", model="tiny", reason=reason, eta_s=eta_s
    )
    assert loading.eta_s == eta_s


def test_a_ready_replica_needs_no_free_memory() -> None:
    full = neuron("a", replica("a", READY), free_gib=0)
    assert decide(full, entry=MEASURED) == Route(neuron="a", model="tiny")
