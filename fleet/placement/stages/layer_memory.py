"""Counts the layers that a device has room for, wherever they are in the model. Pure.

layers   a a a b a a a b      a window of n layers takes at most windows[n] bytes:
         └─ n=3 ─┘            so many fit whichever run of layers a stage gets
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import sub

from fleet.placement.stages.devices import StageDevice
from inference.loading.costs.model_costs import Kind, ModelCosts
from inference.protocol.load_progress import LayerCost

BLOCK_TOKENS = 32
NUM_STATES = 17
"""A recurrent layer's states: one for each of 16 requests and the empty one."""
MIB = 1024**2
LEAST_TOKENS = 256
"""The fewest tokens of keys and values for an engine."""
WANTED_CONTEXTS = 4
"""Full contexts at once that a load wants memory for: more helps little, and large devices stay
free for large models."""
STAGE_BYTES: dict[Kind, int] = {"cpu": 512 * MIB, "cuda": 1024 * MIB}
"""The memory of a stage's process and its libraries; on a card also the allocators' unused
memory."""


class LayerMemory:
    def __init__(self, costs: ModelCosts, kv_tokens: int) -> None:
        self.costs = costs
        self.kv_tokens = kv_tokens
        self.windows: dict[Kind, list[int]] = {
            "cuda": self._windows("cuda"),
            "cpu": self._windows("cpu"),
        }

    def usable_bytes(self, device: StageDevice, *, is_first: bool) -> int:
        outer_bytes = self.costs.outer_bytes.on(device.kind) if is_first else 0
        return device.free_bytes - self.beside_bytes(device.kind) - outer_bytes

    def beside_bytes(self, kind: Kind) -> int:
        return STAGE_BYTES[kind] + self.costs.step_bytes.on(kind)

    def most_layers(self, device: StageDevice, *, is_first: bool) -> int:
        usable_bytes = self.usable_bytes(device, is_first=is_first)
        return max(0, bisect_right(self.windows[device.kind], usable_bytes) - 1)

    def kv_bytes(self, layer: LayerCost, kind: Kind) -> int:
        return self.kv_tokens * layer.kv_token_bytes.on(kind) + NUM_STATES * layer.state_bytes

    def _windows(self, kind: Kind) -> list[int]:
        return _windows(
            [
                layer.weight_bytes.on(kind)
                + layer.expert_bytes.on(kind)
                + self.kv_bytes(layer, kind)
                for layer in self.costs.layers
            ]
        )


def whole_bytes(costs: ModelCosts, kind: Kind) -> int:
    kv_bytes = sum(
        LEAST_TOKENS * layer.kv_token_bytes.on(kind) + NUM_STATES * layer.state_bytes
        for layer in costs.layers
    )
    beside_bytes = STAGE_BYTES[kind] + costs.step_bytes.on(kind)
    return costs.weight_bytes.on(kind) + kv_bytes + beside_bytes


def _windows(sizes: Sequence[int]) -> list[int]:
    """``[n]``: the most bytes of any n neighbours. Never decreases."""
    if len(set(sizes)) == 1:
        return [sizes[0] * number for number in range(len(sizes) + 1)]
    sums = [0, *accumulate(sizes)]
    return [max(map(sub, sums[number:], sums)) for number in range(len(sums))]
