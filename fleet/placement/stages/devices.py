"""Devices and links of plans, and their speeds where nothing was measured yet. Pure.

Speeds are makers' figures, of which steps reach a part (``REACHED``). Sources: NVIDIA's data sheets
and architecture papers of each card (memory bandwidth; dense bfloat16 or, before Ampere, float16 in
tensor cores); for processors two channels of DDR4-3200 (JEDEC JESD79-4, 2 x 25.6 GB/s) and eight
cores of 3 GHz with one 512-bit multiply-add a cycle on float32. A processor of fewer cores is
slower: each waits for at most some 16 lines of 64 bytes at a time, 80 ns for each, and so reads a
quarter of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inference.loading.costs.model_costs import Kind
from inference.protocol.heartbeat import DeviceInfo

GB, TERA = 10**9, 10**12


@dataclass(frozen=True, slots=True)
class Speed:
    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Link:
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDevice:
    neuron: str
    name: str
    """The device's name in a load spec: ``cuda:0``, ``cpu``."""
    kind: Kind
    free_bytes: int
    speed: Speed


REACHED = 0.7
"""The part of the maker's figures that decode steps reach."""
BY_KIND: Mapping[Kind, Speed] = {
    "cuda": Speed(300 * GB, 60 * TERA),  # the L4's, the slowest of its generation
    "cpu": Speed(51.2 * GB, 0.77 * TERA),
}
BY_NAME: Mapping[str, Speed] = {
    "H200": Speed(4800 * GB, 989 * TERA),
    "H100 PCIe": Speed(2000 * GB, 756 * TERA),
    "H100": Speed(3350 * GB, 989 * TERA),
    "A100": Speed(1555 * GB, 312 * TERA),
    "L40S": Speed(864 * GB, 362 * TERA),
    "L4": Speed(300 * GB, 121 * TERA),
    "A10": Speed(600 * GB, 125 * TERA),
    "T4": Speed(320 * GB, 65 * TERA),
    "RTX 5090": Speed(1792 * GB, 209 * TERA),
    "RTX 4090": Speed(1008 * GB, 165 * TERA),
    "RTX 4060 Ti": Speed(288 * GB, 44 * TERA),
    "RTX 3090": Speed(936 * GB, 71 * TERA),
    "RTX 3060": Speed(360 * GB, 25 * TERA),
    "RTX A6000": Speed(768 * GB, 155 * TERA),
    "GB10": Speed(273 * GB, 125 * TERA),
}
"""A part of the driver's name for the card; the first match counts."""
FIGURE_CORES = 8
"""The cores of the processor in ``BY_KIND``."""
READING_CORES = 4
"""As many cores read as fast as its channels can."""
LAYER_S: Mapping[Kind, float] = {"cuda": 10e-6, "cpu": 20e-6}
"""Seconds a layer adds to memory and arithmetic: launches, and threads that meet."""
LOCAL = Link(50e-6, 10 * GB)
"""Between devices of one host: two copies through its memory."""
NETWORK = Link(200e-6, 0.117 * GB)
"""Between hosts: Gigabit Ethernet (IEEE 802.3ab) less its frames, through one switch."""


def speed_of(info: DeviceInfo, num_cores: int | None) -> Speed:
    """``num_cores`` of its host; ``None``: unknown."""
    words = f" {info.name if info.kind == 'cuda' else ''} "
    named = (speed for name, speed in BY_NAME.items() if f" {name} " in words)
    found = next(named, BY_KIND[info.kind])
    reading = computing = REACHED
    if info.kind == "cpu" and num_cores is not None:
        reading *= min(1.0, num_cores / READING_CORES)
        computing *= min(1.0, num_cores / FIGURE_CORES)
    return Speed(reading * found.bytes_per_s, computing * found.flops_per_s)
