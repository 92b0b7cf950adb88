"""Models that no host could ever run: one table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.overview import DeviceLine, NeuronLine
from fleet.overview.feasible import why_no_host, why_not_now
from tests.cases import each_case

GIB = 1024**3


def host(name: str, status: str = "online", **gib: float) -> NeuronLine:
    """``cuda=24``: one card of 24 GiB; ``cpu=64``: its processors' memory."""
    devices = [
        DeviceLine(
            id=f"{kind}:0",
            name=f"the {kind}",
            total_memory_bytes=int(size * GIB),
            free_memory_bytes=0,
        )
        for kind, size in gib.items()
    ]
    return NeuronLine(
        name=name, status=status, version="", problems=(), devices=tuple(devices), replicas=()
    )


def two_cards(name: str, *gib: float) -> NeuronLine:
    devices = [
        replace(host(name, cuda=size).devices[0], id=f"cuda:{index}")
        for index, size in enumerate(gib)
    ]
    return replace(host(name), devices=tuple(devices))


CARD = host("a", cuda=24, cpu=64)
PROCESSOR = host("b", cpu=16)
TABLE: dict[str, tuple[dict[str, Any], list[NeuronLine], str]] = {
    "room on a card": ({"vram_mb": 20 * 1024}, [CARD], ""),
    "too large for cards, not for processors": ({"vram_mb": 40 * 1024}, [CARD], ""),
    "a need that nobody knows": ({}, [PROCESSOR], ""),
    "no fleet yet": ({"vram_mb": 2**30}, [], ""),
    "its host is away and belongs to the fleet": (
        {"vram_mb": 40 * 1024},
        [PROCESSOR, host("c", "away", cpu=64)],
        "",
    ),
    "too large": (
        {"vram_mb": 40 * 1024},
        [PROCESSOR],
        "it needs a card or a processor of 40.0 GiB or more, and the largest is the cpu of b with "
        "16.0 GiB",
    ),
    "a refused host does not count": (
        {"vram_mb": 8 * 1024},
        [host("c", "refused", cpu=64)],
        "it needs a card or a processor of 8.0 GiB or more, and no host has one",
    ),
    "no card of that size": (
        {"min_device_vram_mb": 12 * 1024},
        [PROCESSOR, host("c", cuda=8)],
        "it needs a card of 12.0 GiB or more, and the largest is the cuda of c with 8.0 GiB",
    ),
    "too few cards": (
        {"min_devices": 2, "tensor_parallel": 2},
        [CARD],
        "it needs 2 cards of one host, and no host has so many: a has 1",
    ),
    "two cards, of which one is too small": (
        {"min_devices": 2, "tensor_parallel": 2, "min_device_vram_mb": 16 * 1024},
        [CARD, two_cards("c", 24, 8)],
        "it needs 2 cards of one host of 16.0 GiB or more, and the smaller of the largest 2 of one "
        "host is the cuda of c with 8.0 GiB",
    ),
    "not where it may run": (
        {"vram_mb": 20 * 1024, "pinned_on": ("b",)},
        [CARD, PROCESSOR],
        "it needs a card or a processor of 20.0 GiB or more on b, by its pinned_on, and the "
        "largest is the cpu of b with 16.0 GiB",
    ),
}


@each_case(("settings", "hosts", "why"), TABLE.values(), ids=TABLE.keys())
def test_why_no_host_can_run_it(
    settings: dict[str, Any], hosts: list[NeuronLine], why: str
) -> None:
    entry = CatalogueEntry(name="tiny", source="pypi:tiny", **settings)
    assert why_no_host(entry, hosts) == why


def test_the_hosts_that_take_no_load_now() -> None:
    entry = CatalogueEntry(name="tiny", source="pypi:tiny", vram_mb=20 * 1024)
    draining, away = host("a", "draining", cuda=24), host("d", "away", cuda=24)
    assert why_not_now(entry, [draining, away, PROCESSOR]) == "a is draining, d is away"
    assert why_not_now(entry, [draining, host("e", cuda=24)]) == ""
    assert why_not_now(entry, [PROCESSOR]) == ""
