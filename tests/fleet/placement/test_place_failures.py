"""Where a model is placed after loads of it have failed."""

from __future__ import annotations

from dataclasses import replace

from fleet.live.snapshot import FleetSnapshot
from fleet.placement import Load, Reject, Wait, place
from fleet.placement.failures import UNFIT_BACKOFF_S, failed_loads
from inference.protocol.load_progress import LoadFailure
from tests.cases import each_case
from tests.fleet.placement.placing import FAILED, GIB, MEASURED, TINY, decide, neuron, replica

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
    short = decide(neuron("a", a_moment_ago), entry=known)
    assert isinstance(short, Reject)
    assert short.code == "not_enough_memory"


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


@each_case(
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
