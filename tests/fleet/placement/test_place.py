"""Placement's order of preference, case by case, and where a model is placed after loads of it
have failed."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from fleet import placement
from fleet.catalogue import CatalogueEntry
from fleet.live.measurements import MeasuredLoad
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import FAILED_LOAD_BACKOFF_S, Decision, Load, Reject, Route, Wait, place
from fleet.placement.failures import UNFIT_BACKOFF_S, failed_loads
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    DRAINING,
    FAILED,
    GIB,
    LOADING,
    READY,
    RECOVERING,
    loaded,
    processor,
    refused,
)
from tests.fleet.placement.fleets import (
    took as took_on_card,
)

TINY = CatalogueEntry(name="tiny", source="pypi:tiny")
MEASURED = replace(TINY, weight_bytes=4 * GIB)


def replica(neuron: str, status: ReplicaStatus, **changes) -> ReplicaView:
    values = {"model": "tiny", "job_id": "job", "status_age_s": 5.0}
    return ReplicaView(neuron=neuron, status=status, **values | changes)


def neuron(name: str, *replicas: ReplicaView, free_gib: int = 8, devices: int = 1) -> NeuronView:
    return NeuronView(
        name=name,
        epoch="epoch",
        version="0",
        devices=(processor(free=free_gib, total=64),) * devices,
        replicas=replicas,
    )


def decide(*neurons: NeuronView, entry: CatalogueEntry = TINY) -> Decision:
    return place(entry, FleetSnapshot(neurons=neurons))


def took(neuron: str, gib: float) -> MeasuredLoad:
    return took_on_card(neuron, gib, "cpu")


TABLE = {
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


def test_a_refusal_names_the_limit_that_an_operator_set() -> None:
    there = neuron("a", free_gib=1)
    for total_gib, code in ((6, "not_enough_memory"), (2, "exceeds_device")):
        limited = msgspec.structs.replace(
            there.devices[0],
            total_memory_bytes=total_gib * GIB,
            installed_memory_bytes=24 * GIB,
        )
        decision = refused(decide(replace(there, devices=(limited,)), entry=MEASURED))
        assert decision.code == code
        assert "by its HELEXA_MEMORY_LIMIT" in decision.message


def test_each_neuron_goes_by_its_own_loads_others_by_the_largest() -> None:
    """The size of the files, and what a load took on a card, are no measure then."""
    entry = replace(MEASURED, measured_loads=(took("a", 6.0), took_on_card("a", 60.0)))
    assert isinstance(decide(neuron("a", free_gib=5), entry=entry), Reject)
    assert isinstance(decide(neuron("a", free_gib=6), entry=entry), Load)
    entry = replace(TINY, measured_loads=(took("a", 3.0), took("b", 6.0)))
    assert isinstance(decide(neuron("a", free_gib=4), entry=entry), Load)
    assert isinstance(decide(neuron("b", free_gib=4), entry=entry), Reject)
    assert isinstance(decide(neuron("new", free_gib=4), entry=entry), Reject)
    assert isinstance(decide(neuron("new", free_gib=6), entry=entry), Load)


def test_the_neuron_that_comes_closest_is_named() -> None:
    entry = replace(TINY, measured_loads=(took("a", 5.0), took("b", 9.0)))
    decision = refused(decide(neuron("a", free_gib=2), neuron("b", free_gib=7), entry=entry))
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


UNFIT = LoadFailure(code="does_not_fit", message="too big", needed_bytes=9 * GIB)


def test_who_did_not_fit_is_waited_for_until_its_need_is_known() -> None:
    """No request is refused in the moment before the control records the model's need."""
    just_now = replica("a", FAILED, status_age_s=1.0, failure=UNFIT)
    decision = decide(neuron("a", just_now))
    assert isinstance(decision, Wait)
    assert decision.eta_s == UNFIT_BACKOFF_S - 1.0


def test_who_did_not_fit_is_soon_placed_by_what_it_needs() -> None:
    a_moment_ago = replica("a", FAILED, status_age_s=UNFIT_BACKOFF_S, failure=UNFIT)
    known = replace(TINY, vram_mb=9 * 1024)
    assert decide(neuron("a", a_moment_ago, free_gib=10), entry=known) == Load(
        neuron="a", model="tiny", devices=("cpu",)
    )
    assert refused(decide(neuron("a", a_moment_ago), entry=known)).code == "not_enough_memory"


@each_case(
    ("num_failed_loads", "backoff_s"),
    [(1, UNFIT_BACKOFF_S), (2, 60.0), (3, 120.0), (5, 480.0), (6, 600.0), (99, 600.0)],
)
def test_who_does_not_fit_again_and_again_is_tried_ever_more_rarely(
    num_failed_loads: int, backoff_s: float
) -> None:
    known = replace(TINY, vram_mb=9 * 1024)
    for age_s, kind in ((backoff_s - 1.0, (Wait, Reject)), (backoff_s, Load)):
        failed = replica(
            "a", FAILED, status_age_s=age_s, failure=UNFIT, num_failed_loads=num_failed_loads
        )
        assert isinstance(decide(neuron("a", failed, free_gib=10), entry=known), kind)


def test_a_need_of_two_ranks_is_known_once_it_is_that_of_both() -> None:
    """A failure reports the need of each device, and the catalogue that of all."""
    failed = replica(
        "a", FAILED, status_age_s=UNFIT_BACKOFF_S, failure=UNFIT, devices=("cuda:0", "cuda:1")
    )
    half, whole = replace(TINY, vram_mb=9 * 1024), replace(TINY, vram_mb=18 * 1024)
    assert failed_loads(half, [failed]).unfit == () != failed_loads(half, [failed]).recent
    assert failed_loads(whole, [failed]).recent == ()


@each_case(
    ("failure", "entry"),
    [(UNFIT, MEASURED), (LoadFailure(code="does_not_fit", message="too big"), TINY)],
    ids=["more than loads have shown", "no number"],
)
def test_a_need_that_nobody_can_go_by_is_waited_out(
    failure: LoadFailure, entry: CatalogueEntry
) -> None:
    failed = replica("a", FAILED, status_age_s=UNFIT_BACKOFF_S, failure=failure, devices=("cpu",))
    assert refused(decide(neuron("a", failed), entry=entry)).code == "load_failed"


def test_a_failure_is_not_tried_again_before_something_has_changed() -> None:
    """However long ago it was; elsewhere it is, and by hand."""
    crashed = LoadFailure(code="engine_crashed", message="signal 9")
    failed = replica("a", FAILED, status_age_s=9e6, failure=crashed, is_unchanged=True)
    decision = refused(decide(neuron("a", failed)))
    assert decision.retry_after_s is not None
    assert decision.code == "load_failed" and "signal 9" in decision.message
    assert loaded(decide(neuron("a", failed), neuron("b"))).neuron == "b"
    by_hand = place(TINY, FleetSnapshot(neurons=(neuron("a", failed),)), tries_again=True)
    assert loaded(by_hand).neuron == "a"
    assert isinstance(decide(neuron("a", replace(failed, is_unchanged=False))), Load)


@each_case(
    ("code", "words"),
    [
        ("bad_file", "It is not tried again until its files or its catalogue entry change, or"),
        ("repo_fetch_failed", "It is tried again once the hub answers for it, its catalogue"),
    ],
)
def test_a_permanent_failure_names_what_it_waits_for(code: str, words: str) -> None:
    failure = LoadFailure(code=code, message="why")
    decision = refused(decide(neuron("a", replica("a", FAILED, failure=failure))))
    assert decision.retry_after_s is None
    assert decision.code == code and words in decision.message


def test_an_aged_failure_does_not_hide_that_memory_is_short() -> None:
    aged = replica("a", FAILED, status_age_s=999.0)
    assert (
        refused(decide(neuron("a", aged, free_gib=1), entry=MEASURED)).code == "not_enough_memory"
    )
