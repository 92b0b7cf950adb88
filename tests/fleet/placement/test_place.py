"""Where a request and a load go, and where they do after loads have failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.placement import Decision, Load, Reject, Wait, place
from fleet.placement.capacity import MIN_TIME_SLICE_S
from fleet.placement.failures import FAILED_LOAD_BACKOFF_S, UNFIT_BACKOFF_S, failed_loads
from fleet.placement.needs import UNKNOWN_BYTES, USUAL_CONTEXT_TOKENS, WANTED_CONTEXTS, Needs
from fleet.placement.refusals import NO_NEURON_RETRY_AFTER_S, SUGGESTION
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage
from tests.cases import each_case
from tests.fleet.placement import fleets
from tests.fleet.placement.fleets import (
    FAILED,
    GIB,
    LOADING,
    RECOVERING,
    brief,
    entry,
    host_of,
    loaded,
    processor,
    refused,
    took,
    world,
)

TINY = CatalogueEntry(name="tiny", source="pypi:tiny")
MEASURED = replace(TINY, weight_bytes=4 * GIB)


def host(name: str, status: ReplicaStatus | None = None, *, free_gib=8, **changes) -> NeuronView:
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


def test_waits_and_refusals_in_words() -> None:
    nowhere = refused(decide(replace(host("a"), devices=())))
    assert nowhere.retry_after_s == NO_NEURON_RETRY_AFTER_S
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
    # It names the limit that an operator set.
    there = host("a", free_gib=1)
    for total_gib, code in ((6, "not_enough_memory"), (2, "exceeds_device")):
        sizes = {"total_memory_bytes": total_gib * GIB, "installed_memory_bytes": 24 * GIB}
        limited = msgspec.structs.replace(there.devices[0], **sizes)
        decision = refused(decide(replace(there, devices=(limited,)), entry=MEASURED))
        assert decision.code == code and "by its HELEXA_MEMORY_LIMIT" in decision.message


def test_each_neuron_goes_by_its_own_loads_others_by_the_largest() -> None:
    def decided(there: str, **took_gib: float) -> Decision:
        loads = [took(name, gib, "cpu") for name, gib in took_gib.items()]
        model = replace(MEASURED, measured_loads=(*loads, took("a", 60)))
        return place(model, world(there))

    for there, a, b, fits in (
        ("a cpu5", 6, 6, False),
        ("a cpu6", 6, 6, True),
        ("a cpu4", 3, 6, True),
        ("b cpu4", 3, 6, False),
        ("new cpu4", 3, 6, False),
        ("new cpu6", 3, 6, True),
    ):
        assert isinstance(decided(there, a=a, b=b), Load) == fits
    decision = refused(decided("a cpu2; b cpu7", a=5, b=9))
    assert f"needs {9 * GIB:,} bytes of free memory on b" in decision.message, "it comes closest"


UNFIT = LoadFailure(code="does_not_fit", message="too big", needed_bytes=9 * GIB)
KNOWN = replace(TINY, vram_mb=9 * 1024)


def test_who_did_not_fit_is_soon_placed_by_what_it_needs() -> None:
    decision = decide(host("a", FAILED, status_age_s=1.0, failure=UNFIT))
    assert isinstance(decision, Wait)
    assert decision.eta_s == UNFIT_BACKOFF_S - 1.0
    ago: dict[str, Any] = {"status_age_s": UNFIT_BACKOFF_S, "failure": UNFIT}
    assert brief(decide(host("a", FAILED, free_gib=10, **ago), entry=KNOWN)) == LOAD_A
    for there, model, code in (
        (host("a", FAILED, **ago), KNOWN, "not_enough_memory"),
        (host("a", FAILED, **ago | {"failure": TOO_BIG}), TINY, "load_failed"),
        (host("a", FAILED, devices=("cpu",), **ago), MEASURED, "load_failed"),
        (host("a", FAILED, free_gib=1, status_age_s=999.0), MEASURED, "not_enough_memory"),
    ):
        assert refused(decide(there, entry=model)).code == code
    # A failure reports the need of each device, and the catalogue that of all.
    failed = replica(FAILED, devices=("cuda:0", "cuda:1"), **ago)
    assert failed_loads(KNOWN, [failed]).unfit == () != failed_loads(KNOWN, [failed]).recent
    assert failed_loads(replace(TINY, vram_mb=18 * 1024), [failed]).recent == ()
    # Again and again, it is tried ever more rarely.
    waits_s = {1: UNFIT_BACKOFF_S, 2: 60.0, 3: 120.0, 5: 480.0, 6: 600.0, 99: 600.0}
    for num, backoff_s in waits_s.items():
        for age_s, kind in ((backoff_s - 1.0, (Wait, Reject)), (backoff_s, Load)):
            failed = {"status_age_s": age_s, "failure": UNFIT, "num_failed_loads": num}
            there = host("a", FAILED, free_gib=10, **failed)
            assert isinstance(decide(there, entry=KNOWN), kind), num
    # A failure is not tried again before something has changed; elsewhere it is, and by hand.
    crashed = LoadFailure(code="engine_crashed", message="signal 9")
    failed = {"status_age_s": 9e6, "failure": crashed}
    there = host("a", FAILED, is_unchanged=True, **failed)
    decision = refused(decide(there))
    assert decision.retry_after_s is not None
    assert decision.code == "load_failed" and "signal 9" in decision.message
    assert brief(decide(there, host("b"))) == "load tiny b/cpu"
    assert brief(place(TINY, FleetSnapshot(neurons=(there,)), tries_again=True)) == LOAD_A
    assert brief(decide(host("a", FAILED, **failed))) == LOAD_A


GATEWAY = "gateway cpu110"
BOTH = f"{GATEWAY}; gpu cpu60 31/32"
BROKEN = "broken cpu110 broken-cards"
VRAM = {"min_device_vram_mb": 20_000}
BY_NEURON = entry(measured_loads=(took("a", 22), took("b", 10)))
PAIR, RANKS = entry(needs_gib=30, min_devices=2), entry(needs_gib=30, tensor_parallel=2)
ON_CPU = entry(needs_gib=10, device="cpu")
LONG_AGO = f"a cpu8/64 tiny,failed,age={FAILED_LOAD_BACKOFF_S}"


@each_case(
    ("what", "model", "there", "expected"),
    [
        ("the least busy", TINY, "a 8 tiny,running=1,queued=3; b 8 tiny,running=3", "route b"),
        ("equally busy: by name", TINY, "b 8 tiny,running=1; a 8 tiny,queued=1", "route a"),
        ("ready before loading", TINY, "a 8 tiny,loading; b 8 tiny,running=99", "route b"),
        ("a load under way before another", TINY, "a 8 tiny,loading; b 60", "wait a"),
        ("recovering is waited for", TINY, "a 8 tiny,recovering", "wait a"),
        ("load where most memory is free", TINY, "a cpu4; b cpu5", "b/cpu"),
        ("equal memory: by name", TINY, "b cpu8; a cpu8", "a/cpu"),
        ("after a recent failure", TINY, "a cpu60 tiny,failed,age=5; b cpu8", "b/cpu"),
        ("an old one", TINY, LONG_AGO, "a/cpu"),
        ("draining, and another neuron can", TINY, "a cpu60 tiny,draining; b cpu8", "b/cpu"),
        ("draining, by name", TINY, "b cpu8 tiny,draining; a cpu8 tiny,draining", "wait a"),
        ("an empty fleet", TINY, "", "no_neuron"),
        ("it leaves", TINY, "a 20 leaving; b 4", "b/cuda:0"),
        ("it is refused", TINY, "a 20 refused; b 4", "b/cuda:0"),
        ("while nobody else does", TINY, "a 2 tiny draining; b 20 tiny,loading", "route a"),
        ("another does", TINY, "a 2 tiny draining; b 20 tiny,running=99", "route b"),
        ("it ends", TINY, "a 2 tiny leaving; b 20", "b/cuda:0"),
        ("it is not waited for", TINY, "a 2 tiny,loading leaving; b 20", "b/cuda:0"),
        ("not by one that is refused", TINY, "a 2 tiny refused", "no_neuron"),
        ("a card before more of a processor", entry(needs_gib=20), BOTH, "gpu/cuda:0"),
        ("the same, of unknown size", TINY, BOTH, "gpu/cuda:0"),
        ("a processor that is asked for", entry(device="cpu"), BOTH, "gateway/cpu"),
        ("what is too large for every card", entry(needs_gib=40), BOTH, "gpu/cpu"),
        ("not beside broken cards", entry(needs_gib=10), f"{BROKEN}; {GATEWAY}", "gateway/cpu"),
        ("unless asked for", ON_CPU, BROKEN, "broken/cpu"),
        ("cards beyond the first", entry(needs_gib=10), "n 5 20", "n/cuda:1"),
        ("the snuggest", entry(needs_gib=8), "n 24 12 9", "n/cuda:1"),
        ("of tight ones the roomiest", entry(needs_gib=8), "n 8 9", "n/cuda:1"),
        ("the same, of unknown size", TINY, "n 3 9; o 8", "n/cuda:1"),
        ("two cards are placed as one", PAIR, "n 14 16 24", "n/cuda:1+cuda:2"),
        ("and are on one neuron", PAIR, "one 24; two 16 16", "two/cuda:0+cuda:1"),
        ("ranks are on a card each", RANKS, "n 14 16 24", "n/cuda:1+cuda:2"),
        ("or share a processor", entry(tensor_parallel=2, device="cpu"), GATEWAY, "gateway/cpu"),
        ("cards of the least size", entry(needs_gib=2, **VRAM), "n 8/8 10", "n/cuda:1"),
        ("only where it is pinned", entry(pinned_on=("b",)), "a 20; b 4", "b/cuda:0"),
        ("each neuron by what it took there", BY_NEURON, "a 20; b 12", "b/cuda:0"),
    ],
)
def test_where_a_request_goes(what, model, there: str, expected: str) -> None:
    expected = f"load tiny {expected}" if "/" in expected else expected
    assert brief(place(model, world(there))) == expected, what


def test_devices_that_no_host_has_are_named() -> None:
    none, two, gateway = ", and no host has one", f"two 5 20; {GATEWAY}", GATEWAY
    few = ", and no host has so many: two has 2"
    largest = "a card of 39.1 GiB or more, and the largest is a card of two with 24.0 GiB"
    for model, there, needs in (
        (entry(device="cuda"), gateway, f"a card{none}"),
        (entry(min_devices=2), gateway, f"2 cards of one host{none}"),
        (entry(**VRAM), gateway, f"a card of 19.5 GiB or more{none}"),
        (
            entry(needs_gib=2, device="cpu", **VRAM),
            gateway,
            f"a processor of 19.5 GiB or more{none}",
        ),
        (entry(needs_gib=2, min_devices=3), two, f"3 cards of one host of 0.7 GiB or more{few}"),
        (entry(min_device_vram_mb=40_000), two, largest),
        (entry(min_devices=3), f"{gateway}; two 9 9 draining", f"3 cards of one host{few}"),
    ):
        assert place(model, world(there)) == Reject(
            code="exceeds_device",
            message=f"tiny needs {needs}",
            retry_after_s=None,
            model_id="huggingface:org/tiny",
            suggestion=SUGGESTION,
        )
    cannot_be_used = "The cards of broken cannot be used: reboot. HELEXA_DEVICE=cpu has its neuron"
    too_small = f"needs {40 * GIB:,} bytes of memory, and cuda:0 of a has {24 * GIB:,} in all; no "
    of_40 = entry(needs_gib=1, device="cuda", min_device_vram_mb=40 * 1024)
    for model, there, code, words, retry_after_s in (
        (entry(needs_gib=10), BROKEN, "cuda_unavailable", cannot_be_used, 30.0),
        (entry(pinned_on=("gone",)), "a 20", "no_neuron", "on gone only, which is away", 5.0),
        (of_40, "a 20; b 4/32", "exceeds_device", too_small, None),
    ):
        decision = refused(place(model, world(there)))
        assert (decision.code, decision.retry_after_s) == (code, retry_after_s)
        assert words in decision.message


def test_what_an_absent_neuron_holds_is_waited_for_and_a_promise_kept() -> None:
    decision = place(entry(), world("b 20", absent=(host_of("a 2 tiny"),)))
    assert isinstance(decision, Wait) and "just fallen silent" in decision.reason
    lost = place(entry(), world("b 20", absent=(host_of("a 2 tiny,failed"),)))
    assert brief(lost) == "load tiny b/cuda:0"
    time_slice = TimeSlice(model="big", neuron="a", devices=("cuda:0",), device_bytes=20 * GIB)
    promised = world("a 22", time_slices=(time_slice,))
    for model in (entry("big", 20), entry("tiny", 2)):
        assert isinstance(place(model, promised), Load)
    behind = place(entry("other", 8), promised)
    assert isinstance(behind, Wait) and behind.eta_s == MIN_TIME_SLICE_S


def with_kv(kib_per_token: int, **changes: Any) -> CatalogueEntry:
    measured = replace(took("elsewhere", 1), kv_token_bytes=kib_per_token * 1024)
    return entry(measured_loads=(measured,), **changes)


@each_case(
    ("what", "wanted", "free_gib", "goes_to"),
    [
        ("room beside a small model counts", entry(needs_gib=0.9), (1.2, 12, 20), "1"),
        ("four contexts of 32k at 64 KiB a token", with_kv(64), (1.2, 5, 24, 9.5), "3"),
        ("a short one", with_kv(64, max_context_tokens=4096), (1.2, 5, 24, 9.5), "1"),
        ("asked for by number", with_kv(64, kv_memory_bytes=GIB), (1.2, 2.5, 24), "1"),
        ("where nothing is enough, the roomiest", with_kv(1024), (1.3, 5, 24, 9.5), "2"),
    ],
)
def test_a_model_goes_where_it_can_do_most(what, wanted, free_gib, goes_to: str) -> None:
    hosts = "; ".join(f"{number} {free}" for number, free in enumerate(free_gib))
    assert loaded(place(wanted, world(hosts))).neuron == goes_to, what

    one, two = (Needs(with_kv(64, min_devices=num, tensor_parallel=num)) for num in (1, 2))
    kv_bytes = WANTED_CONTEXTS * USUAL_CONTEXT_TOKENS * 64 * 1024
    assert one.wanted_bytes(GIB) == GIB + kv_bytes
    assert two.wanted_bytes(GIB) == GIB + kv_bytes // 2, "it is divided among devices"
    assert Needs(entry(needs_gib=4)).wanted_bytes(4 * GIB) == 5 * GIB + UNKNOWN_BYTES
