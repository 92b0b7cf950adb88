"""Placement's order of preference, case by case, and where a model is placed after loads of it
have failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from fleet import placement
from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import FAILED_LOAD_BACKOFF_S, Decision, Load, Reject, Wait, place
from fleet.placement.failures import UNFIT_BACKOFF_S, failed_loads
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from tests.cases import each_case
from tests.fleet.placement import fleets
from tests.fleet.placement.fleets import (
    FAILED,
    GIB,
    LOADING,
    RECOVERING,
    processor,
    refused,
)
from tests.fleet.placement.worlds import brief, world

TINY = CatalogueEntry(name="tiny", source="pypi:tiny")
MEASURED = replace(TINY, weight_bytes=4 * GIB)


def host(
    name: str, status: ReplicaStatus | None = None, *, free_gib: int = 8, **changes: Any
) -> NeuronView:
    """A host with processors; ``status`` is its replica's, which has held it for five seconds."""
    holds = () if status is None else (replica(status, name, **changes),)
    return fleets.neuron(name, processor(free=free_gib, total=64), holds=holds)


def replica(status: ReplicaStatus, on: str = "a", **changes: Any) -> ReplicaView:
    values = {"model": "tiny", "job_id": "job", "status_age_s": 5.0}
    return ReplicaView(neuron=on, status=status, **values | changes)


def decide(*neurons: NeuronView, entry: CatalogueEntry = TINY) -> Decision:
    return place(entry, FleetSnapshot(neurons=neurons))


LOAD_A = "load tiny a/cpu"
TOO_BIG = LoadFailure(code="does_not_fit", message="too big")


def there(text: str) -> FleetSnapshot:
    """Hosts with processors of 64 GiB, of which 8 are free, and replicas of five seconds."""
    words = [one.split() for one in text.split(";") if one]
    return world(
        ";".join(
            f"{name} cpu{free}/64 {' '.join(f'tiny,age=5,used=never,{one}' for one in holds)}"
            for name, free, *holds in words
        )
    )


@each_case(
    ("what", "text", "expected"),
    [
        ("the least busy", "a 8 ready,running=1,queued=3; b 8 ready,running=3", "route b"),
        ("equally busy: by name", "b 8 ready,running=1; a 8 ready,queued=1", "route a"),
        ("ready before loading", "a 8 loading; b 8 ready,running=99", "route b"),
        ("a load under way before another load", "a 8 loading; b 60", "wait a"),
        ("recovering is waited for", "a 8 recovering", "wait a"),
        ("load where most memory is free", "a 4; b 5", "load tiny b/cpu"),
        ("equal memory: by name", "b 8; a 8", "load tiny a/cpu"),
        ("elsewhere after a recent failure", "a 60 failed; b 8", "load tiny b/cpu"),
        ("an old one", f"a 8 failed,age={FAILED_LOAD_BACKOFF_S}", "load tiny a/cpu"),
        ("draining, and another neuron can", "a 60 draining; b 8", "load tiny b/cpu"),
        ("draining, by name", "b 8 draining; a 8 draining", "wait a"),
        ("an empty fleet", "", "no_neuron"),
    ],
)
def test_order_of_preference(what: str, text: str, expected: str) -> None:
    assert brief(place(TINY, there(text))) == expected, what


def test_waits_and_refusals_in_words() -> None:
    nowhere = refused(decide(replace(host("a"), devices=())))
    assert nowhere.retry_after_s == placement.NO_NEURON_RETRY_AFTER_S
    assert nowhere.message == "No neuron that could run tiny is online"
    half = LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=2)
    fetched = LoadProgress(stage=LoadStage.DOWNLOADING, done=1, total=4, unit="bytes")
    quarter = msgspec.structs.replace(fetched, stage=LoadStage.WEIGHTS)
    sooner = host("b", LOADING, status_age_s=10.0, progress=half)
    for hosts, words, eta_s in (
        ([host("a", RECOVERING)], "a|recovering on a", None),
        ([host("a", LOADING), sooner], "b|loading on b (weights 50%)", 10.0),
        # Of a download that is at a quarter after 100 s.
        (
            [host("a", LOADING, progress=fetched, status_age_s=100.0)],
            "a|loading on a (downloading 25%)",
            300.0,
        ),
        # The weights are at a quarter 2 s after the engine began, whatever came before it.
        (
            [host("a", LOADING, progress=quarter, status_age_s=600.0, engine_age_s=2.0)],
            "a|loading on a (weights 25%)",
            6.0,
        ),
    ):
        on, _, doing = words.partition("|")
        expected = Wait(neuron=on, model="tiny", reason=f"tiny is {doing}", eta_s=eta_s)
        assert decide(*hosts) == expected
    assert decide(host("a", FAILED, failure=TOO_BIG)) == Reject(
        code="load_failed",
        message="Loading tiny failed on a: too big",
        retry_after_s=FAILED_LOAD_BACKOFF_S - 5.0,
        model_id="pypi:tiny",
        suggestion="Unload another model, or load a smaller quant.",
    )
    for code, why in (
        ("bad_file", "It is not tried again until its files or its catalogue entry change, or"),
        ("repo_fetch_failed", "It is tried again once the hub answers for it, its catalogue"),
    ):
        failure = LoadFailure(code=code, message="why")
        permanent = refused(decide(host("a", FAILED, failure=failure)))
        assert (permanent.code, permanent.retry_after_s) == (code, None)
        assert why in permanent.message


def test_a_refusal_names_the_limit_that_an_operator_set() -> None:
    there = host("a", free_gib=1)
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

    def entry(**took_gib: float) -> CatalogueEntry:
        loads = [fleets.took(name, gib, "cpu") for name, gib in took_gib.items()]
        return replace(MEASURED, measured_loads=(*loads, fleets.took("a", 60)))

    alone, two = entry(a=6), entry(a=3, b=6)
    for model, on, free_gib, fits in (
        (alone, "a", 5, False),
        (alone, "a", 6, True),
        (two, "a", 4, True),
        (two, "b", 4, False),
        (two, "new", 4, False),
        (two, "new", 6, True),
    ):
        assert isinstance(decide(host(on, free_gib=free_gib), entry=model), Load) == fits
    decision = refused(decide(host("a", free_gib=2), host("b", free_gib=7), entry=entry(a=5, b=9)))
    assert f"needs {9 * GIB:,} bytes of free memory on b" in decision.message, "it comes closest"


UNFIT = LoadFailure(code="does_not_fit", message="too big", needed_bytes=9 * GIB)
KNOWN = replace(TINY, vram_mb=9 * 1024)


def test_who_did_not_fit_is_soon_placed_by_what_it_needs() -> None:
    """No request is refused in the moment before the control records the model's need."""
    decision = decide(host("a", FAILED, status_age_s=1.0, failure=UNFIT))
    assert isinstance(decision, Wait)
    assert decision.eta_s == UNFIT_BACKOFF_S - 1.0
    a_moment_ago: dict[str, Any] = {"status_age_s": UNFIT_BACKOFF_S, "failure": UNFIT}
    assert brief(decide(host("a", FAILED, free_gib=10, **a_moment_ago), entry=KNOWN)) == LOAD_A
    decision = refused(decide(host("a", FAILED, **a_moment_ago), entry=KNOWN))
    assert decision.code == "not_enough_memory"
    no_number = a_moment_ago | {"failure": TOO_BIG}
    assert refused(decide(host("a", FAILED, **no_number))).code == "load_failed"
    smaller_loads = decide(host("a", FAILED, devices=("cpu",), **a_moment_ago), entry=MEASURED)
    assert refused(smaller_loads).code == "load_failed"
    aged = host("a", FAILED, free_gib=1, status_age_s=999.0)
    assert refused(decide(aged, entry=MEASURED)).code == "not_enough_memory"
    # A failure reports the need of each device, and the catalogue that of all.
    devices = {"devices": ("cuda:0", "cuda:1")}
    failed = replica(FAILED, status_age_s=UNFIT_BACKOFF_S, failure=UNFIT, **devices)
    assert failed_loads(KNOWN, [failed]).unfit == () != failed_loads(KNOWN, [failed]).recent
    assert failed_loads(replace(TINY, vram_mb=18 * 1024), [failed]).recent == ()


@each_case(
    ("num_failed_loads", "backoff_s"),
    [(1, UNFIT_BACKOFF_S), (2, 60.0), (3, 120.0), (5, 480.0), (6, 600.0), (99, 600.0)],
)
def test_who_does_not_fit_again_and_again_is_tried_ever_more_rarely(
    num_failed_loads: int, backoff_s: float
) -> None:
    for age_s, kind in ((backoff_s - 1.0, (Wait, Reject)), (backoff_s, Load)):
        failed = {"status_age_s": age_s, "failure": UNFIT, "num_failed_loads": num_failed_loads}
        assert isinstance(decide(host("a", FAILED, free_gib=10, **failed), entry=KNOWN), kind)


def test_a_failure_is_not_tried_again_before_something_has_changed() -> None:
    """However long ago it was; elsewhere it is, and by hand."""
    crashed = LoadFailure(code="engine_crashed", message="signal 9")
    failed = {"status_age_s": 9e6, "failure": crashed}
    there = host("a", FAILED, is_unchanged=True, **failed)
    decision = refused(decide(there))
    assert decision.retry_after_s is not None
    assert decision.code == "load_failed" and "signal 9" in decision.message
    assert brief(decide(there, host("b"))) == "load tiny b/cpu"
    assert brief(place(TINY, FleetSnapshot(neurons=(there,)), tries_again=True)) == LOAD_A
    assert brief(decide(host("a", FAILED, **failed))) == LOAD_A
