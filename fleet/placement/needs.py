"""A model's needs: kinds, number and size of its devices (``Needs``); the bytes of its layers on
each, and the seconds that they take there (``KindCosts``). Pure.

Speeds are makers' figures, of which steps reach a part (``REACHED``). Sources: NVIDIA's data sheets
and architecture papers of each card (memory bandwidth; dense bfloat16 or, before Ampere, float16 in
tensor cores); for processors two channels of DDR4-3200 (JEDEC JESD79-4, 2 x 25.6 GB/s) and eight
cores of 3 GHz with one 512-bit multiply-add a cycle on float32. A processor of fewer cores is
slower: each waits for at most some 16 lines of 64 bytes at a time, 80 ns for each, and so reads a
quarter of that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import sub

from fleet.catalogue import CatalogueEntry
from inference.loading.model_costs import Kind, ModelCosts
from inference.protocol.heartbeat import DeviceInfo
from inference.protocol.load_report import LayerCost

GB, TERA, MIB = 10**9, 10**12, 1024**2


@dataclass(frozen=True, slots=True)
class Speed:
    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDevice:
    neuron: str
    name: str
    """The device's name in a load spec: ``cuda:0``, ``cpu``."""
    kind: Kind
    free_bytes: int
    speed: Speed


REACHED = 0.7
"""The part of the makers' figures that decode steps reach."""
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


def speed_of(info: DeviceInfo, num_cores: int | None) -> Speed:
    words = f" {info.name if info.kind == 'cuda' else ''} "
    named = (speed for name, speed in BY_NAME.items() if f" {name} " in words)
    found = next(named, BY_KIND[info.kind])
    reading = computing = REACHED
    if info.kind == "cpu" and num_cores is not None:
        reading *= min(1.0, num_cores / READING_CORES)
        computing *= min(1.0, num_cores / FIGURE_CORES)
    return Speed(reading * found.bytes_per_s, computing * found.flops_per_s)


BLOCK_TOKENS = 32
NUM_STATES = 17
"""A recurrent layer's states: one for each of 16 requests and the empty one."""
LEAST_TOKENS = 256
"""The fewest tokens of keys and values for an engine."""
WANTED_CONTEXTS = 4
"""Full contexts at once that a load wants memory for: more helps little, and large devices stay
free for large models."""
STAGE_BYTES: Mapping[Kind, int] = {"cpu": 512 * MIB, "cuda": 1024 * MIB}
"""A stage's process and libraries; on a card also the allocators' unused memory."""
CONTEXT_TOKENS = 512
"""The tokens whose keys and values each row of a step reads."""


def beside_bytes(costs: ModelCosts, kind: Kind) -> int:
    """Beside weights and KV: a stage's process, and the activations of a step."""
    return STAGE_BYTES[kind] + costs.step_bytes.on(kind)


def kv_bytes(layer: LayerCost, kind: Kind, kv_tokens: int) -> int:
    return kv_tokens * layer.kv_token_bytes.on(kind) + NUM_STATES * layer.state_bytes


def whole_bytes(costs: ModelCosts, kind: Kind) -> int:
    kv = sum(kv_bytes(layer, kind, LEAST_TOKENS) for layer in costs.layers)
    return costs.weight_bytes.on(kind) + kv + beside_bytes(costs, kind)


class KindCosts:
    """A decode step reads a stage's weights once and each row's keys and values; whichever takes
    longer, reading or multiplying, decides. Every layer counts as the model's average one, so that
    predictions do not depend on a stage's layer range."""

    def __init__(self, costs: ModelCosts, kind: Kind, kv_tokens: int) -> None:
        def average(size_of: Callable[[LayerCost], int]) -> float:
            return sum(map(size_of, costs.layers)) / len(costs.layers)

        self._costs, self._kind = costs, kind
        self._weight_bytes = average(lambda layer: layer.weight_bytes.on(kind))
        self._expert_bytes = average(lambda layer: layer.expert_bytes.on(kind))
        self._row_bytes = average(
            lambda layer: CONTEXT_TOKENS * layer.kv_token_bytes.on(kind) + layer.state_bytes
        )
        self._num_weights = average(lambda layer: layer.num_weights)
        self._num_expert_weights = average(lambda layer: layer.num_expert_weights)
        sizes = [
            layer.weight_bytes.on(kind)
            + layer.expert_bytes.on(kind)
            + kv_bytes(layer, kind, kv_tokens)
            for layer in costs.layers
        ]
        sums = [0, *accumulate(sizes)]
        self._windows = sums
        """``[n]``: the most bytes of any n neighbours, so that many fit whichever a stage gets."""
        if len(set(sizes)) > 1:
            self._windows = [max(map(sub, sums[number:], sums)) for number in range(len(sums))]

    def most_layers(self, device: StageDevice, *, is_first: bool) -> int:
        outer_bytes = self._costs.outer_bytes.on(self._kind) if is_first else 0
        usable_bytes = device.free_bytes - beside_bytes(self._costs, self._kind) - outer_bytes
        return max(0, bisect_right(self._windows, usable_bytes) - 1)

    def layer_s(self, speed: Speed, num_rows: float) -> float:
        untouched = float((1 - self._costs.active_share) ** num_rows)
        """The share of experts that no row uses, where rows choose evenly."""
        num_bytes = self._weight_bytes + num_rows * self._row_bytes
        num_bytes += self._expert_bytes * (1 - untouched)
        num_weights = self._num_weights + self._costs.active_share * self._num_expert_weights
        return LAYER_S[self._kind] + _slower_s(speed, num_bytes, num_rows * num_weights)

    def head_s(self, speed: Speed, num_rows: float) -> float:
        num_bytes = self._costs.head_bytes.on(self._kind)
        return _slower_s(speed, num_bytes, num_rows * self._costs.num_head_weights)


def _slower_s(speed: Speed, num_bytes: float, num_products: float) -> float:
    return max(num_bytes / speed.bytes_per_s, 2 * num_products / speed.flops_per_s)


USUAL_CONTEXT_TOKENS = 32 * 1024
"""The assumed context of a model whose catalogue entry has no limit."""
UNKNOWN_SHARE = 0.25
UNKNOWN_BYTES = 2 * 1024**3
"""KV memory wanted while no load has measured a token's bytes: a share of the need, plus this."""


class Needs:
    def __init__(self, entry: CatalogueEntry) -> None:
        self.entry = entry
        num_ranks = 1 if entry.device == "cpu" else entry.tensor_parallel
        self.num_devices = max(1, entry.min_devices, num_ranks)
        self.least_total_bytes = (entry.min_device_vram_mb or 0) * MIB

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Best first. Several devices are cards, but for ranks with ``device = cpu``, which share
        one CPU. A CPU has no VRAM, so it never meets ``min_device_vram_mb``."""
        match self.entry.device:
            case "cuda":
                return ("cuda",)
            case "cpu":
                return () if self.least_total_bytes else ("cpu",)
            case _:
                needs_card = self.num_devices > 1 or self.least_total_bytes > 0
                return ("cuda",) if needs_card else ("cuda", "cpu")

    def total_bytes(self, neuron: str, kind: Kind) -> int | None:
        entry = self.entry
        is_measured = any(load.device_kind == kind for load in entry.measured_loads)
        if entry.costs is not None and not is_measured:
            return whole_bytes(entry.costs, kind) + (entry.kv_memory_bytes or 0)
        return entry.needed_memory_bytes(neuron, kind)

    def least_device_bytes(self, kind: Kind) -> int | None:
        """The smallest over all neurons; ``None`` while unknown."""
        neurons = {"", *(load.neuron for load in self.entry.measured_loads)}
        known = (self.device_bytes(neuron, kind) for neuron in neurons)
        return min((size for size in known if size is not None), default=None)

    def device_bytes(self, neuron: str, kind: Kind) -> int | None:
        total = self.total_bytes(neuron, kind)
        return None if total is None else -(-total // self.num_devices)

    def wanted_bytes(self, device_bytes: int) -> int:
        """Room for ``WANTED_CONTEXTS`` contexts. The operator's KV size is part of the need."""
        if self.entry.kv_memory_bytes is not None:
            return device_bytes
        token_bytes = max((one.kv_token_bytes for one in self.entry.measured_loads), default=0)
        if not token_bytes:
            return int(device_bytes * (1 + UNKNOWN_SHARE)) + UNKNOWN_BYTES // self.num_devices
        tokens = WANTED_CONTEXTS * (self.entry.max_context_tokens or USUAL_CONTEXT_TOKENS)
        return device_bytes + tokens * token_bytes // self.num_devices
