"""Placement sees devices: which kind, which card, how many of them, and how large they are. A model
goes where it can do most: context and sequences first, then tightness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.catalogue import CatalogueEntry
from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot
from fleet.placement import Decision, Load, Reject, Route, Wait, place
from fleet.placement.devices.capacity import MIN_TIME_SLICE_S
from fleet.placement.devices.needs import (
    UNKNOWN_BYTES,
    USUAL_CONTEXT_TOKENS,
    Needs,
)
from fleet.placement.refusals import SUGGESTION
from fleet.placement.stages.devices import WANTED_CONTEXTS
from tests.cases import each_case
from tests.fleet.placement.fleets import (
    FAILED,
    GIB,
    LOADING,
    card,
    entry,
    fleet,
    loaded,
    neuron,
    processor,
    replica,
    took,
)


def load(neuron_name: str, *devices: str) -> Load:
    return Load(neuron=neuron_name, model="tiny", devices=devices)


GATEWAY_BOX = neuron("a-gateway", processor(free=110))
GPU_HOST = neuron("gpu", processor(free=60), card(0, free=31, total=32))
TWO_CARDS = neuron("two", card(0, free=5), card(1, free=20))

BROKEN_DRIVER = replace(neuron("broken", processor(free=110)), cuda_unavailable="reboot")


def unmet(problem: str) -> Reject:
    return Reject(
        code="exceeds_device",
        message=f"tiny {problem}",
        retry_after_s=None,
        model_id="huggingface:org/tiny",
        suggestion=SUGGESTION,
    )


TABLE = {
    "31 GiB of a card before 110 GiB of a processor's": (
        entry(needs_gib=20),
        [GATEWAY_BOX, GPU_HOST],
        load("gpu", "cuda:0"),
    ),
    "nor does a model of unknown size go to a processor": (
        entry(),
        [GATEWAY_BOX, GPU_HOST],
        load("gpu", "cuda:0"),
    ),
    "unless the catalogue requires it": (
        entry(device="cpu"),
        [GATEWAY_BOX, GPU_HOST],
        load("a-gateway", "cpu"),
    ),
    "what is too large for every card": (
        entry(needs_gib=40),
        [GATEWAY_BOX, GPU_HOST],
        load("gpu", "cpu"),
    ),
    "nor to the processors of a host whose cards cannot be used": (
        entry(needs_gib=10),
        [BROKEN_DRIVER],
        Reject(
            code="cuda_unavailable",
            message="The cards of broken cannot be used: reboot. HELEXA_DEVICE=cpu has its neuron "
            "load on processors",
            retry_after_s=30.0,
        ),
    ),
    "but to those of another one": (
        entry(needs_gib=10),
        [BROKEN_DRIVER, GATEWAY_BOX],
        load("a-gateway", "cpu"),
    ),
    "a model for processors goes there all the same": (
        entry(needs_gib=10, device="cpu"),
        [BROKEN_DRIVER],
        load("broken", "cpu"),
    ),
    "not where the catalogue wants a card": (
        entry(device="cuda"),
        [GATEWAY_BOX],
        unmet("needs a card, and no host has one"),
    ),
    "cards beyond the first are used": (entry(needs_gib=10), [TWO_CARDS], load("two", "cuda:1")),
    "the snuggest that is comfortable": (
        entry(needs_gib=8),
        [neuron("n", card(0, free=24), card(1, free=12), card(2, free=9))],
        load("n", "cuda:1"),
    ),
    "where none is comfortable, the roomiest": (
        entry(needs_gib=8),
        [neuron("n", card(0, free=8), card(1, free=9))],
        load("n", "cuda:1"),
    ),
    "of unknown size: the roomiest": (
        entry(),
        [neuron("n", card(0, free=3), card(1, free=9)), neuron("o", card(0, free=8))],
        load("n", "cuda:1"),
    ),
    "two cards are placed as one": (
        entry(needs_gib=30, min_devices=2),
        [neuron("n", card(0, free=14), card(1, free=16), card(2, free=24))],
        load("n", "cuda:1", "cuda:2"),
    ),
    "and are on one neuron": (
        entry(needs_gib=30, min_devices=2),
        [neuron("one", card(0, free=24)), neuron("two", card(0, free=16), card(1, free=16))],
        load("two", "cuda:0", "cuda:1"),
    ),
    "ranks are on a card each": (
        entry(needs_gib=30, tensor_parallel=2),
        [neuron("n", card(0, free=14), card(1, free=16), card(2, free=24))],
        load("n", "cuda:1", "cuda:2"),
    ),
    "or share a processor that is asked for": (
        entry(tensor_parallel=2, device="cpu"),
        [GATEWAY_BOX],
        load(GATEWAY_BOX.name, "cpu"),
    ),
    "a processor is one device": (
        entry(min_devices=2),
        [GATEWAY_BOX],
        unmet("needs 2 cards of one host, and no host has one"),
    ),
    "cards of the least size": (
        entry(needs_gib=2, min_device_vram_mb=20_000),
        [neuron("n", card(0, free=8, total=8), card(1, free=10, total=24))],
        load("n", "cuda:1"),
    ),
    "a processor is no card of that size": (
        entry(needs_gib=2, min_device_vram_mb=20_000),
        [GATEWAY_BOX],
        unmet("needs a card of 19.5 GiB or more, and no host has one"),
    ),
    "nor where the catalogue has cpu beside it": (
        entry(needs_gib=2, device="cpu", min_device_vram_mb=20_000),
        [GATEWAY_BOX],
        unmet("needs a processor of 19.5 GiB or more, and no host has one"),
    ),
    "more cards than any neuron has": (
        entry(needs_gib=2, min_devices=3),
        [TWO_CARDS, GATEWAY_BOX],
        unmet("needs 3 cards of one host of 0.7 GiB or more, and no host has so many: two has 2"),
    ),
    "cards of a least size, and it is unknown what it takes": (
        entry(min_device_vram_mb=40_000),
        [TWO_CARDS, GATEWAY_BOX],
        unmet("needs a card of 39.1 GiB or more, and the largest is a card of two with 24.0 GiB"),
    ),
    "more cards than the fleet's, also of hosts that take no loads": (
        entry(min_devices=3),
        [GATEWAY_BOX, neuron("two", card(0, free=9), card(1, free=9), is_draining=True)],
        unmet("needs 3 cards of one host, and no host has so many: two has 2"),
    ),
    "only where it is pinned": (
        entry(pinned_on=("b",)),
        [neuron("a", card(free=20)), neuron("b", card(free=4))],
        load("b", "cuda:0"),
    ),
    "pinned where nobody is": (
        entry(pinned_on=("gone",)),
        [neuron("a", card(free=20))],
        Reject(
            code="no_neuron",
            message="tiny may run on gone only, which is away",
            retry_after_s=5.0,
        ),
    ),
    "larger than any device, with both numbers": (
        entry(needs_gib=1, device="cuda", min_device_vram_mb=40 * 1024),
        [neuron("a", card(free=20)), neuron("b", card(free=4, total=32))],
        Reject(
            code="exceeds_device",
            message=f"tiny needs {40 * 1024**3:,} bytes of memory, and cuda:0 of a has "
            f"{24 * 1024**3:,} in all; no neuron comes closer",
            retry_after_s=None,
            model_id="huggingface:org/tiny",
            suggestion="Load a smaller quant, or add a host with a larger device.",
        ),
    ),
    "each neuron by what the model took there": (
        entry(measured_loads=(took("a", 22), took("b", 10))),
        [neuron("a", card(free=20)), neuron("b", card(free=12))],
        load("b", "cuda:0"),
    ),
}


@each_case(("model", "neurons", "expected"), TABLE.values(), ids=TABLE.keys())
def test_where_a_model_is_loaded(model, neurons, expected: Decision) -> None:
    assert place(model, fleet(*neurons)) == expected


STANDING = {
    "nothing is loaded on a neuron that drains": (
        [neuron("a", card(free=20), is_draining=True), neuron("b", card(free=4))],
        load("b", "cuda:0"),
    ),
    "nor on one that leaves": (
        [neuron("a", card(free=20), is_leaving=True), neuron("b", card(free=4))],
        load("b", "cuda:0"),
    ),
    "nor on one that is not admitted": (
        [neuron("a", card(free=20), is_admitted=False), neuron("b", card(free=4))],
        load("b", "cuda:0"),
    ),
    "a neuron that drains serves while nobody else does": (
        [
            neuron("a", card(free=2), holds=(replica("tiny"),), is_draining=True),
            neuron("b", card(free=20), holds=(replica("tiny", LOADING, on="b"),)),
        ],
        Route(neuron="a", model="tiny"),
    ),
    "and no longer than that": (
        [
            neuron("a", card(free=2), holds=(replica("tiny"),), is_draining=True),
            neuron("b", card(free=20), holds=(replica("tiny", on="b", in_flight=99),)),
        ],
        Route(neuron="b", model="tiny"),
    ),
    "one that leaves serves nothing new": (
        [
            neuron("a", card(free=2), holds=(replica("tiny"),), is_leaving=True, is_draining=True),
            neuron("b", card(free=20)),
        ],
        load("b", "cuda:0"),
    ),
    "one that was refused serves nothing": (
        [neuron("a", card(free=2), holds=(replica("tiny"),), is_admitted=False)],
        Reject(
            code="no_neuron",
            message="No neuron that could run tiny is online",
            retry_after_s=5.0,
        ),
    ),
    "a load on a neuron that leaves is not waited for": (
        [
            neuron("a", card(free=2), holds=(replica("tiny", LOADING),), is_leaving=True),
            neuron("b", card(free=20)),
        ],
        load("b", "cuda:0"),
    ),
}


@each_case(("neurons", "expected"), STANDING.values(), ids=STANDING.keys())
def test_what_a_neurons_standing_means(neurons, expected: Decision) -> None:
    assert place(entry(), fleet(*neurons)) == expected


def test_what_a_time_slice_promises_is_not_given_to_others() -> None:
    time_slice = TimeSlice(model="big", neuron="a", devices=("cuda:0",), device_bytes=20 * 1024**3)
    promised = fleet(neuron("a", card(free=22)), time_slices=(time_slice,))
    assert isinstance(place(entry("big", 20), promised), Load)
    assert isinstance(place(entry("tiny", 2), promised), Load)
    behind = place(entry("other", 8), promised)
    assert isinstance(behind, Wait)
    assert behind.eta_s == MIN_TIME_SLICE_S


def test_an_absent_neuron_is_waited_for() -> None:
    gone = neuron("a", card(free=2), holds=(replica("tiny"),))
    blinking = fleet(neuron("b", card(free=20)), absent=(gone,))
    decision = place(entry(), blinking)
    assert isinstance(decision, Wait)
    assert "just fallen silent" in decision.reason
    failed = neuron("a", card(free=2), holds=(replica("tiny", FAILED),))
    lost = fleet(neuron("b", card(free=20)), absent=(failed,))
    assert place(entry(), lost) == load("b", "cuda:0")


MIB = 1024**2


def with_kv(kib_per_token: int, needs_gib: float = 1.0, **changes: Any) -> CatalogueEntry:
    measured = replace(took("elsewhere", needs_gib), kv_token_bytes=kib_per_token * 1024)
    return entry(measured_loads=(measured,), **changes)


@each_case(
    ("wanted", "free_gib", "goes_to"),
    [
        (entry(needs_gib=0.9), (1.2, 12, 20), "1"),
        (with_kv(64), (1.2, 5, 24, 9.5), "3"),
        (with_kv(64, max_context_tokens=4096), (1.2, 5, 24, 9.5), "1"),
        (with_kv(64, kv_memory_bytes=GIB), (1.2, 2.5, 24), "1"),
        (with_kv(1024), (1.3, 5, 24, 9.5), "2"),
    ],
    ids=[
        "room beside a small model counts before tightness",
        "four contexts of 32k at 64 KiB a token take 8 GiB",
        "a short context needs less",
        "memory for keys and values that was asked for by number is all that is wanted",
        "where nothing is enough, the roomiest",
    ],
)
def test_a_model_goes_where_it_can_do_most(
    wanted: CatalogueEntry, free_gib: tuple[float, ...], goes_to: str
) -> None:
    """Of hosts ``0``, ``1`` and so on, with one card each."""
    hosts = [neuron(str(number), card(free=free)) for number, free in enumerate(free_gib)]
    decision = loaded(place(wanted, fleet(*hosts)))
    assert decision.neuron == goes_to


def test_what_is_wanted_is_divided_among_devices() -> None:
    one, two = (Needs(with_kv(64, min_devices=num, tensor_parallel=num)) for num in (1, 2))
    kv_bytes = WANTED_CONTEXTS * USUAL_CONTEXT_TOKENS * 64 * 1024
    assert one.wanted_bytes(GIB) == GIB + kv_bytes
    assert two.wanted_bytes(GIB) == GIB + kv_bytes // 2
    assert Needs(entry(needs_gib=4)).wanted_bytes(4 * GIB) == 5 * GIB + UNKNOWN_BYTES


@given(
    free_mib=st.lists(st.integers(0, 24 * 1024), min_size=1, max_size=8),
    needs_mib=st.integers(1, 16 * 1024),
    kib_per_token=st.integers(0, 512),
    max_context_tokens=st.none() | st.integers(512, 200_000),
)
def test_no_device_where_it_could_do_more_is_left_for_a_tighter_one(
    free_mib: list[int], needs_mib: int, kib_per_token: int, max_context_tokens: int | None
) -> None:
    wanted = with_kv(kib_per_token, needs_mib / 1024, max_context_tokens=max_context_tokens)
    hosts = [neuron(f"{i}", card(free=free / 1024)) for i, free in enumerate(free_mib)]
    needs = Needs(wanted)
    each = needs.device_bytes("0", "cuda")
    assert each is not None
    fitting = [free * MIB for free in free_mib if free * MIB >= each]
    decision = place(wanted, FleetSnapshot(neurons=tuple(hosts)))
    assert isinstance(decision, Load) == bool(fitting)
    if isinstance(decision, Load):
        chosen = free_mib[int(decision.neuron)] * MIB
        enough = [free for free in fitting if free >= needs.wanted_bytes(each)]
        assert chosen == (min(enough) if enough else max(fitting))
