"""A model goes where it can do most: context and sequences first, then tightness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.catalogue import CatalogueEntry
from fleet.live.snapshot import FleetSnapshot
from fleet.placement import Load, place
from fleet.placement.devices.needs import (
    UNKNOWN_BYTES,
    USUAL_CONTEXT_TOKENS,
    WANTED_CONTEXTS,
    Needs,
)
from tests.fleet.placement.fleets import GIB, card, entry, fleet, neuron, took

MIB = 1024**2


def with_kv(kib_per_token: int, needs_gib: float = 1.0, **changes: Any) -> CatalogueEntry:
    measured = replace(took("elsewhere", needs_gib), kv_token_bytes=kib_per_token * 1024)
    return entry(measured_loads=(measured,), **changes)


def place_of(wanted: CatalogueEntry, *free_gib: float) -> str:
    """The neuron that it goes to, of ``0``, ``1`` and so on with one card each."""
    hosts = [neuron(str(number), card(free=free)) for number, free in enumerate(free_gib)]
    decision = place(wanted, fleet(*hosts))
    assert isinstance(decision, Load)
    return decision.neuron


def test_room_beside_a_small_model_counts_before_tightness() -> None:
    assert place_of(entry(needs_gib=0.9), 1.2, 12, 20) == "1"


def test_a_reload_does_not_go_where_a_context_is_shorter() -> None:
    """64 KiB a token: four contexts of 32k take 8 GiB."""
    assert place_of(with_kv(64), 1.2, 5, 24, 9.5) == "3"


def test_a_short_context_needs_less() -> None:
    assert place_of(with_kv(64, max_context_tokens=4096), 1.2, 5, 24, 9.5) == "1"


def test_memory_for_kv_that_was_asked_for_by_number_is_all_that_is_wanted() -> None:
    assert place_of(with_kv(64, kv_memory_bytes=GIB), 1.2, 2.5, 24) == "1"


def test_where_nothing_is_enough_the_roomiest_is_taken() -> None:
    assert place_of(with_kv(1024), 1.3, 5, 24, 9.5) == "2"


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
