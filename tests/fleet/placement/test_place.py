"""Placement's order of preference, case by case, and what holds for every fleet."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import catalogue, placement
from fleet.catalogue import CatalogueEntry
from fleet.live import absences, measurements, snapshot, turns
from fleet.live.measurements import DeviceKind, MeasuredLoad
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import FAILED_LOAD_BACKOFF_S, Decision, Load, Reject, Route, Wait, place
from fleet.placement.devices.sleeping import waking_bytes
from fleet.placement.failures import UNFIT_BACKOFF_S, failed_loads
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus
from inference.protocol.load import LoadFailure, LoadProgress, LoadStage

GIB = 1024**3
PURE = [Path(module.__file__ or "") for module in (absences, measurements, snapshot, turns)] + [
    path
    for package in (catalogue, placement)
    for path in sorted(Path(package.__file__ or "").parent.rglob("*.py"))
]
TINY = CatalogueEntry(name="tiny", source="pypi:tiny")
MEASURED = replace(TINY, weight_bytes=4 * GIB)
READY, LOADING = ReplicaStatus.READY, ReplicaStatus.LOADING
RECOVERING, DRAINING = ReplicaStatus.RECOVERING, ReplicaStatus.DRAINING
FAILED = ReplicaStatus.FAILED


def replica(neuron: str, status: ReplicaStatus, **changes) -> ReplicaView:
    values = {"model": "tiny", "job_id": "job", "status_age_s": 5.0}
    return ReplicaView(neuron=neuron, status=status, **values | changes)


def neuron(name: str, *replicas: ReplicaView, free_gib: int = 8, devices: int = 1) -> NeuronView:
    return NeuronView(
        name=name,
        epoch="epoch",
        version="0",
        devices=tuple(
            DeviceInfo(
                index=index,
                kind="cpu",
                name="a processor",
                total_memory_bytes=64 * GIB,
                free_memory_bytes=free_gib * GIB,
            )
            for index in range(devices)
        ),
        replicas=replicas,
    )


def decide(*neurons: NeuronView, entry: CatalogueEntry = TINY) -> Decision:
    return place(entry, FleetSnapshot(neurons=neurons))


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
    "a recent failure is told": (
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


@pytest.mark.parametrize(("neurons", "expected"), TABLE.values(), ids=TABLE.keys())
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


def took(neuron: str, gib: float, kind: DeviceKind = "cpu") -> MeasuredLoad:
    return MeasuredLoad(
        neuron=neuron,
        device_kind=kind,
        load_bytes=int(gib * GIB),
        process_bytes=0,
        kv_token_bytes=0,
        memory_correction_bytes=0,
        prefill_speed=None,
    )


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


UNFIT = LoadFailure(code="does_not_fit", message="too big", needed_bytes=9 * GIB)


def test_who_did_not_fit_is_waited_for_until_its_need_is_known() -> None:
    """Nobody is refused for the moment in which the control writes down what it needs."""
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
    short = decide(neuron("a", a_moment_ago), entry=known)
    assert isinstance(short, Reject)
    assert short.code == "not_enough_memory"


@pytest.mark.parametrize(
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
    """A failure says what each device needs, and the catalogue what all need."""
    failed = replica(
        "a", FAILED, status_age_s=UNFIT_BACKOFF_S, failure=UNFIT, devices=("cuda:0", "cuda:1")
    )
    half, whole = replace(TINY, vram_mb=9 * 1024), replace(TINY, vram_mb=18 * 1024)
    assert failed_loads(half, [failed]).unfit == () != failed_loads(half, [failed]).recent
    assert failed_loads(whole, [failed]).recent == ()


def test_who_reported_more_than_loads_have_shown_waits_as_others_do() -> None:
    failed = replica("a", FAILED, status_age_s=UNFIT_BACKOFF_S, failure=UNFIT, devices=("cpu",))
    decision = decide(neuron("a", failed), entry=MEASURED)
    assert isinstance(decision, Reject)
    assert decision.code == "load_failed"


def test_a_failure_without_a_number_is_waited_out() -> None:
    failed = replica("a", FAILED, failure=LoadFailure(code="does_not_fit", message="too big"))
    decision = decide(neuron("a", failed))
    assert isinstance(decision, Reject)
    assert decision.code == "load_failed"


def test_a_failure_is_not_tried_again_before_something_has_changed() -> None:
    """However long ago it was; elsewhere it is, and by hand."""
    crashed = LoadFailure(code="engine_crashed", message="signal 9")
    failed = replica("a", FAILED, status_age_s=9e6, failure=crashed, is_unchanged=True)
    decision = decide(neuron("a", failed))
    assert isinstance(decision, Reject) and decision.retry_after_s is not None
    assert decision.code == "load_failed" and "signal 9" in decision.message
    elsewhere = decide(neuron("a", failed), neuron("b"))
    assert isinstance(elsewhere, Load) and elsewhere.neuron == "b"
    by_hand = place(TINY, FleetSnapshot(neurons=(neuron("a", failed),)), tries_again=True)
    assert isinstance(by_hand, Load) and by_hand.neuron == "a"
    assert isinstance(decide(neuron("a", replace(failed, is_unchanged=False))), Load)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("bad_file", "It is not tried again until its files or its catalogue entry change, or"),
        ("repo_fetch_failed", "It is tried again once the hub answers for it, its catalogue"),
    ],
)
def test_a_permanent_failure_names_what_it_waits_for(code: str, words: str) -> None:
    failure = LoadFailure(code=code, message="why")
    decision = decide(neuron("a", replica("a", FAILED, failure=failure)))
    assert isinstance(decision, Reject) and decision.retry_after_s is None
    assert decision.code == code and words in decision.message


def test_an_aged_failure_does_not_hide_that_memory_is_short() -> None:
    aged = replica("a", FAILED, status_age_s=999.0)
    decision = decide(neuron("a", aged, free_gib=1), entry=MEASURED)
    assert isinstance(decision, Reject)
    assert decision.code == "not_enough_memory"


@pytest.mark.parametrize(
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


NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    names = draw(st.lists(NAMES, unique=True))
    return FleetSnapshot(neurons=tuple(draw(neurons(name)) for name in sorted(names)))


@st.composite
def neurons(draw: st.DrawFn, name: str) -> NeuronView:
    models = draw(st.lists(st.sampled_from(["tiny", "other"]), unique=True))
    replicas = [
        replica(
            name,
            draw(st.sampled_from(ReplicaStatus)),
            model=model,
            status_age_s=draw(st.floats(0, 100)),
            in_flight=draw(st.integers(0, 5)),
            queue_depth=draw(st.integers(0, 5)),
        )
        for model in models
    ]
    return neuron(
        name, *replicas, free_gib=draw(st.integers(0, 8)), devices=draw(st.integers(0, 1))
    )


ENTRIES = st.sampled_from([TINY, MEASURED])


@given(ENTRIES, fleets())
def test_decisions_are_about_what_is_there(entry: CatalogueEntry, fleet: FleetSnapshot) -> None:
    decision = place(entry, fleet)
    if isinstance(decision, Reject):
        codes = {"no_neuron", "not_enough_memory", "load_failed"}
        assert decision.code in codes
        assert decision.retry_after_s is not None
        assert decision.retry_after_s > 0
        return
    view = fleet.neuron(decision.neuron)
    assert view is not None
    assert decision.model == entry.name
    held = view.replica_of(entry.name)
    if isinstance(decision, Route):
        assert held is not None
        assert held.status is ReplicaStatus.READY
    elif isinstance(decision, Wait):
        assert held is not None
        assert held.status in {LOADING, RECOVERING, DRAINING, ReplicaStatus.ASLEEP}
    elif held is not None and held.status is ReplicaStatus.ASLEEP:
        (device,) = view.devices
        assert waking_bytes(held) <= device.free_memory_bytes
    else:
        assert held is None or held.status is FAILED
        (device,) = view.devices
        assert decision.devices == ("cpu",)
        needed_bytes = entry.needed_memory_bytes(view.name, "cpu")
        assert (needed_bytes or 0) <= device.free_memory_bytes


@given(ENTRIES, fleets())
def test_a_ready_replica_is_always_used(entry: CatalogueEntry, fleet: FleetSnapshot) -> None:
    ready = [view for view in fleet.replicas_of(entry.name) if view.status is READY]
    decision = place(entry, fleet)
    assert isinstance(decision, Route) == bool(ready)
    if isinstance(decision, Route):
        chosen = next(view for view in ready if view.neuron == decision.neuron)
        assert chosen.num_requests == min(view.num_requests for view in ready)


@given(ENTRIES, fleets(), st.randoms())
def test_the_order_of_neurons_changes_nothing(entry, fleet: FleetSnapshot, random) -> None:
    shuffled = list(fleet.neurons)
    random.shuffle(shuffled)
    assert place(entry, FleetSnapshot(neurons=tuple(shuffled))) == place(entry, fleet)


@given(fleets())
def test_other_models_do_not_matter(fleet: FleetSnapshot) -> None:
    without = tuple(
        replace(view, replicas=tuple(r for r in view.replicas if r.model == "tiny"))
        for view in fleet.neurons
    )
    assert place(TINY, FleetSnapshot(neurons=without)) == place(TINY, fleet)


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_deciding_knows_neither_django_nor_redis_nor_torch(path: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert not imported & {"django", "redis", "torch", "celery", "time", "asyncio", "logging"}
