"""Placement sees devices: which kind, which card, how many of them, and how large they are. A model
goes where it can do most: context and sequences first, then tightness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import TimeSlice
from fleet.placement import Load, Reject, Wait, place
from fleet.placement.devices.capacity import MIN_TIME_SLICE_S
from fleet.placement.devices.needs import UNKNOWN_BYTES, USUAL_CONTEXT_TOKENS, Needs
from fleet.placement.refusals import SUGGESTION
from fleet.placement.stages.devices import WANTED_CONTEXTS
from tests.cases import each_case
from tests.fleet.placement.fleets import GIB, entry, loaded, refused, took
from tests.fleet.placement.worlds import brief, host_of, world

GATEWAY = "gateway cpu110"
BOTH = f"{GATEWAY}; gpu cpu60 31/32"
BROKEN = "broken cpu110 broken-cards"
VRAM = {"min_device_vram_mb": 20_000}
BY_NEURON = entry(measured_loads=(took("a", 22), took("b", 10)))
PAIR, RANKS = entry(needs_gib=30, min_devices=2), entry(needs_gib=30, tensor_parallel=2)


@each_case(
    ("what", "model", "there", "expected"),
    [
        ("a card before more of a processor", entry(needs_gib=20), BOTH, "gpu/cuda:0"),
        ("the same, of unknown size", entry(), BOTH, "gpu/cuda:0"),
        ("a processor that is asked for", entry(device="cpu"), BOTH, "gateway/cpu"),
        ("what is too large for every card", entry(needs_gib=40), BOTH, "gpu/cpu"),
        ("not beside broken cards", entry(needs_gib=10), f"{BROKEN}; {GATEWAY}", "gateway/cpu"),
        ("unless asked for", entry(needs_gib=10, device="cpu"), BROKEN, "broken/cpu"),
        ("cards beyond the first", entry(needs_gib=10), "n 5 20", "n/cuda:1"),
        ("the snuggest", entry(needs_gib=8), "n 24 12 9", "n/cuda:1"),
        ("of tight ones the roomiest", entry(needs_gib=8), "n 8 9", "n/cuda:1"),
        ("the same, of unknown size", entry(), "n 3 9; o 8", "n/cuda:1"),
        ("two cards are placed as one", PAIR, "n 14 16 24", "n/cuda:1+cuda:2"),
        ("and are on one neuron", PAIR, "one 24; two 16 16", "two/cuda:0+cuda:1"),
        ("ranks are on a card each", RANKS, "n 14 16 24", "n/cuda:1+cuda:2"),
        ("or share a processor", entry(tensor_parallel=2, device="cpu"), GATEWAY, "gateway/cpu"),
        ("cards of the least size", entry(needs_gib=2, **VRAM), "n 8/8 10", "n/cuda:1"),
        ("only where it is pinned", entry(pinned_on=("b",)), "a 20; b 4", "b/cuda:0"),
        ("each neuron by what it took there", BY_NEURON, "a 20; b 12", "b/cuda:0"),
    ],
)
def test_where_a_model_is_loaded(what, model, there: str, expected: str) -> None:
    assert brief(place(model, world(there))) == f"load tiny {expected}", what


CARDS_AND_BOX = f"two 5 20; {GATEWAY}"


@each_case(
    ("model", "there", "needs"),
    [
        (entry(device="cuda"), GATEWAY, "a card, and no host has one"),
        (entry(min_devices=2), GATEWAY, "2 cards of one host, and no host has one"),
        (entry(**VRAM), GATEWAY, "a card of 19.5 GiB or more, and no host has one"),
        (
            entry(needs_gib=2, device="cpu", **VRAM),
            GATEWAY,
            "a processor of 19.5 GiB or more, and no host has one",
        ),
        (
            entry(needs_gib=2, min_devices=3),
            CARDS_AND_BOX,
            "3 cards of one host of 0.7 GiB or more, and no host has so many: two has 2",
        ),
        (
            entry(min_device_vram_mb=40_000),
            CARDS_AND_BOX,
            "a card of 39.1 GiB or more, and the largest is a card of two with 24.0 GiB",
        ),
        (
            entry(min_devices=3),
            f"{GATEWAY}; two 9 9 draining",
            "3 cards of one host, and no host has so many: two has 2",
        ),
    ],
)
def test_devices_that_no_host_has_are_named(model, there: str, needs: str) -> None:
    assert place(model, world(there)) == Reject(
        code="exceeds_device",
        message=f"tiny needs {needs}",
        retry_after_s=None,
        model_id="huggingface:org/tiny",
        suggestion=SUGGESTION,
    )


def test_refusals() -> None:
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


@each_case(
    ("there", "expected"),
    [
        ("a 20 draining; b 4", "load tiny b/cuda:0"),
        ("a 20 leaving; b 4", "load tiny b/cuda:0"),
        ("a 20 refused; b 4", "load tiny b/cuda:0"),
        ("a 2 tiny draining; b 20 tiny,loading", "route a"),  # while nobody else does
        ("a 2 tiny draining; b 20 tiny,running=99", "route b"),
        ("a 2 tiny leaving; b 20", "load tiny b/cuda:0"),
        ("a 2 tiny,loading leaving; b 20", "load tiny b/cuda:0"),  # it is not waited for
        ("a 2 tiny refused", "no_neuron"),
    ],
)
def test_what_a_neurons_standing_means(there: str, expected: str) -> None:
    assert brief(place(entry(), world(there))) == expected


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
    """Of hosts ``0``, ``1`` and so on, with one card each."""
    hosts = "; ".join(f"{number} {free}" for number, free in enumerate(free_gib))
    assert loaded(place(wanted, world(hosts))).neuron == goes_to, what

    one, two = (Needs(with_kv(64, min_devices=num, tensor_parallel=num)) for num in (1, 2))
    kv_bytes = WANTED_CONTEXTS * USUAL_CONTEXT_TOKENS * 64 * 1024
    assert one.wanted_bytes(GIB) == GIB + kv_bytes
    assert two.wanted_bytes(GIB) == GIB + kv_bytes // 2, "it is divided among devices"
    assert Needs(entry(needs_gib=4)).wanted_bytes(4 * GIB) == 5 * GIB + UNKNOWN_BYTES
