"""Placement sees devices: which kind, which card, how many of them, and how large they are. A model
goes where it can do most: context and sequences first, then tightness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import TimeSlice
from fleet.placement import Decision, Load, Reject, Route, Wait, place
from fleet.placement.devices.capacity import MIN_TIME_SLICE_S
from fleet.placement.devices.needs import UNKNOWN_BYTES, USUAL_CONTEXT_TOKENS, Needs
from fleet.placement.refusals import SUGGESTION
from fleet.placement.stages.devices import WANTED_CONTEXTS
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    FAILED,
    GIB,
    LOADING,
    box,
    card,
    cards,
    entry,
    fleet,
    loaded,
    neuron,
    processor,
    refused,
    replica,
    took,
)


def load(neuron_name: str, *devices: str) -> Load:
    return Load(neuron=neuron_name, model="tiny", devices=devices)


GATEWAY_BOX = box("a-gateway", 110)
GPU_HOST = neuron("gpu", processor(free=60), card(0, free=31, total=32))
BOTH = [GATEWAY_BOX, GPU_HOST]
BROKEN = replace(box("broken", 110), cuda_unavailable="reboot")
A_20, B_4 = cards("a", 20), cards("b", 4)
VRAM = {"min_device_vram_mb": 20_000}

LOADED: list[tuple[str, CatalogueEntry, list[Any], Load]] = [
    ("a card before more of a processor", entry(needs_gib=20), BOTH, load("gpu", "cuda:0")),
    ("the same, of unknown size", entry(), BOTH, load("gpu", "cuda:0")),
    ("a processor that is asked for", entry(device="cpu"), BOTH, load("a-gateway", "cpu")),
    ("what is too large for every card", entry(needs_gib=40), BOTH, load("gpu", "cpu")),
    ("not beside broken cards", entry(needs_gib=10), [BROKEN, BOTH[0]], load("a-gateway", "cpu")),
    ("unless asked for", entry(needs_gib=10, device="cpu"), [BROKEN], load("broken", "cpu")),
    ("cards beyond the first", entry(needs_gib=10), [cards("n", 5, 20)], load("n", "cuda:1")),
    ("the snuggest", entry(needs_gib=8), [cards("n", 24, 12, 9)], load("n", "cuda:1")),
    ("of tight ones the roomiest", entry(needs_gib=8), [cards("n", 8, 9)], load("n", "cuda:1")),
    ("the same, of unknown size", entry(), [cards("n", 3, 9), cards("o", 8)], load("n", "cuda:1")),
    (
        "two cards are placed as one",
        entry(needs_gib=30, min_devices=2),
        [cards("n", 14, 16, 24)],
        load("n", "cuda:1", "cuda:2"),
    ),
    (
        "and are on one neuron",
        entry(needs_gib=30, min_devices=2),
        [cards("one", 24), cards("two", 16, 16)],
        load("two", "cuda:0", "cuda:1"),
    ),
    (
        "ranks are on a card each",
        entry(needs_gib=30, tensor_parallel=2),
        [cards("n", 14, 16, 24)],
        load("n", "cuda:1", "cuda:2"),
    ),
    (
        "or share a processor that is asked for",
        entry(tensor_parallel=2, device="cpu"),
        [GATEWAY_BOX],
        load("a-gateway", "cpu"),
    ),
    (
        "cards of the least size",
        entry(needs_gib=2, **VRAM),
        [cards("n", 8, 10, total=8), cards("o", 9)],
        load("o", "cuda:0"),
    ),
    ("only where it is pinned", entry(pinned_on=("b",)), [A_20, B_4], load("b", "cuda:0")),
    (
        "each neuron by what the model took there",
        entry(measured_loads=(took("a", 22), took("b", 10))),
        [A_20, cards("b", 12)],
        load("b", "cuda:0"),
    ),
]


@each_case(("what", "model", "neurons", "expected"), LOADED)
def test_where_a_model_is_loaded(what, model, neurons, expected: Load) -> None:
    assert place(model, fleet(*neurons)) == expected, what


UNMET = [
    (entry(device="cuda"), [GATEWAY_BOX], "a card, and no host has one"),
    (entry(min_devices=2), [GATEWAY_BOX], "2 cards of one host, and no host has one"),
    (entry(**VRAM), [GATEWAY_BOX], "a card of 19.5 GiB or more, and no host has one"),
    (
        entry(needs_gib=2, device="cpu", **VRAM),
        [GATEWAY_BOX],
        "a processor of 19.5 GiB or more, and no host has one",
    ),
    (
        entry(needs_gib=2, min_devices=3),
        [cards("two", 5, 20), GATEWAY_BOX],
        "3 cards of one host of 0.7 GiB or more, and no host has so many: two has 2",
    ),
    (
        entry(min_device_vram_mb=40_000),
        [cards("two", 5, 20), GATEWAY_BOX],
        "a card of 39.1 GiB or more, and the largest is a card of two with 24.0 GiB",
    ),
    (
        entry(min_devices=3),
        [GATEWAY_BOX, cards("two", 9, 9, is_draining=True)],
        "3 cards of one host, and no host has so many: two has 2",
    ),
]


@each_case(("model", "neurons", "needs"), UNMET)
def test_devices_that_no_host_has_are_named(model, neurons, needs: str) -> None:
    assert place(model, fleet(*neurons)) == Reject(
        code="exceeds_device",
        message=f"tiny needs {needs}",
        retry_after_s=None,
        model_id="huggingface:org/tiny",
        suggestion=SUGGESTION,
    )


@each_case(
    ("model", "neurons", "code", "message", "retry_after_s"),
    [
        (
            entry(needs_gib=10),
            [BROKEN],
            "cuda_unavailable",
            "The cards of broken cannot be used: reboot. HELEXA_DEVICE=cpu has its neuron load on "
            "processors",
            30.0,
        ),
        (
            entry(pinned_on=("gone",)),
            [A_20],
            "no_neuron",
            "tiny may run on gone only, which is away",
            5.0,
        ),
        (
            entry(needs_gib=1, device="cuda", min_device_vram_mb=40 * 1024),
            [A_20, cards("b", 4, total=32)],
            "exceeds_device",
            f"tiny needs {40 * GIB:,} bytes of memory, and cuda:0 of a has {24 * GIB:,} in all; no "
            "neuron comes closer",
            None,
        ),
    ],
)
def test_refusals(model, neurons, code: str, message: str, retry_after_s: float | None) -> None:
    decision = refused(place(model, fleet(*neurons)))
    found = (decision.code, decision.message, decision.retry_after_s)
    assert found == (code, message, retry_after_s)


HELD = (replica("tiny"),)
STANDING: list[tuple[str, list[Any], Decision]] = [
    ("draining", [cards("a", 20, is_draining=True), B_4], load("b", "cuda:0")),
    ("leaving", [cards("a", 20, is_leaving=True), B_4], load("b", "cuda:0")),
    ("not admitted", [cards("a", 20, is_admitted=False), B_4], load("b", "cuda:0")),
    (
        "a neuron that drains serves while nobody else does",
        [
            cards("a", 2, holds=HELD, is_draining=True),
            cards("b", 20, holds=(replica("tiny", LOADING, on="b"),)),
        ],
        Route(neuron="a", model="tiny"),
    ),
    (
        "and no longer than that",
        [
            cards("a", 2, holds=HELD, is_draining=True),
            cards("b", 20, holds=(replica("tiny", on="b", in_flight=99),)),
        ],
        Route(neuron="b", model="tiny"),
    ),
    (
        "one that leaves serves nothing new",
        [cards("a", 2, holds=HELD, is_leaving=True, is_draining=True), cards("b", 20)],
        load("b", "cuda:0"),
    ),
    (
        "a load on a neuron that leaves is not waited for",
        [cards("a", 2, holds=(replica("tiny", LOADING),), is_leaving=True), cards("b", 20)],
        load("b", "cuda:0"),
    ),
    (
        "one that was refused serves nothing",
        [cards("a", 2, holds=HELD, is_admitted=False)],
        Reject(
            code="no_neuron",
            message="No neuron that could run tiny is online",
            retry_after_s=5.0,
        ),
    ),
]


@each_case(("what", "neurons", "expected"), STANDING)
def test_what_a_neurons_standing_means(what, neurons, expected: Decision) -> None:
    assert place(entry(), fleet(*neurons)) == expected, what


def test_what_a_time_slice_promises_is_not_given_to_others() -> None:
    time_slice = TimeSlice(model="big", neuron="a", devices=("cuda:0",), device_bytes=20 * GIB)
    promised = fleet(cards("a", 22), time_slices=(time_slice,))
    assert isinstance(place(entry("big", 20), promised), Load)
    assert isinstance(place(entry("tiny", 2), promised), Load)
    behind = place(entry("other", 8), promised)
    assert isinstance(behind, Wait)
    assert behind.eta_s == MIN_TIME_SLICE_S


def test_an_absent_neuron_is_waited_for() -> None:
    decision = place(entry(), fleet(cards("b", 20), absent=(cards("a", 2, holds=HELD),)))
    assert isinstance(decision, Wait)
    assert "just fallen silent" in decision.reason
    failed = cards("a", 2, holds=(replica("tiny", FAILED),))
    assert place(entry(), fleet(cards("b", 20), absent=(failed,))) == load("b", "cuda:0")


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
    hosts = [cards(str(number), free) for number, free in enumerate(free_gib)]
    assert loaded(place(wanted, fleet(*hosts))).neuron == goes_to, what


def test_what_is_wanted_is_divided_among_devices() -> None:
    one, two = (Needs(with_kv(64, min_devices=num, tensor_parallel=num)) for num in (1, 2))
    kv_bytes = WANTED_CONTEXTS * USUAL_CONTEXT_TOKENS * 64 * 1024
    assert one.wanted_bytes(GIB) == GIB + kv_bytes
    assert two.wanted_bytes(GIB) == GIB + kv_bytes // 2
    assert Needs(entry(needs_gib=4)).wanted_bytes(4 * GIB) == 5 * GIB + UNKNOWN_BYTES
