"""How many layers a device has room for, wherever they lie in the model. Pure.

layers   a a a b a a a b      a window of n layers takes at most windows[n] bytes:
         └─ n=3 ─┘            so many fit whichever run of layers a stage gets
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import sub

from fleet.placement.stages.devices import StageDevice
from inference.loading.costs.model_costs import Kind, LayerCost, ModelCosts

BLOCK_TOKENS = 32
NUM_STATES = 17
"""The number of states that a recurrent layer keeps: one for each of 16 requests and the empty
one."""
MIB = 1024**2
LEAST_TOKENS = 256
"""An engine needs keys and values of as many tokens."""
WANTED_CONTEXTS = 4
"""A load wants memory for so many full contexts at once: more helps little, and large devices stay
free for large models."""
STAGE_BYTES: dict[Kind, int] = {"cpu": 512 * MIB, "cuda": 1024 * MIB}
"""The memory of a stage's process and its libraries; on a card also what allocators leave
unused."""


class LayerMemory:
    """Memory of one model's layers, with keys and values of ``kv_tokens`` tokens."""

    def __init__(self, costs: ModelCosts, kv_tokens: int) -> None:
        self.costs = costs
        self.kv_tokens = kv_tokens
        self.has_experts = costs.has_experts
        self.windows: dict[Kind, list[int]] = {
            "cuda": self._windows(lambda layer: layer.expert_bytes.cuda, "cuda"),
            "cpu": self._windows(lambda layer: layer.expert_bytes.cpu, "cpu"),
        }
        self.without_experts = self._windows(lambda _: 0, "cuda") if self.has_experts else []
        """The bytes of layers on a card whose experts are apart."""
        self.experts = _windows([layer.expert_bytes.cpu for layer in costs.layers])
        """The bytes of those layers' experts in host memory."""

    def usable_bytes(self, device: StageDevice, *, is_first: bool) -> int:
        """Returns the bytes of the device that layers may use."""
        outer_bytes = self.costs.outer_bytes.on(device.kind) if is_first else 0
        return device.free_bytes - self.beside_bytes(device.kind) - outer_bytes

    def beside_bytes(self, kind: Kind) -> int:
        return STAGE_BYTES[kind] + self.costs.step_bytes.on(kind)

    def most_layers(self, device: StageDevice, *, is_first: bool) -> int:
        """Returns how many layers fit, with all that is theirs."""
        usable_bytes = self.usable_bytes(device, is_first=is_first)
        return max(0, bisect_right(self.windows[device.kind], usable_bytes) - 1)

    def most_apart(self, host: StageDevice) -> int:
        """Layers whose experts fit into the host's memory."""
        usable_bytes = host.free_bytes - STAGE_BYTES["cpu"]
        return max(0, bisect_right(self.experts, usable_bytes) - 1)

    def num_apart(
        self, num_layers: int, card: StageDevice, host: StageDevice, *, is_first: bool
    ) -> int | None:
        """The fewest of ``num_layers`` layers on the card whose experts have to be in the host's
        memory; ``None``: they do not fit even so."""
        usable_bytes = self.usable_bytes(card, is_first=is_first)
        whole, apart = self.windows["cuda"], self.without_experts
        low, high = 0, min(num_layers, self.most_apart(host))
        if not apart or whole[num_layers - high] + apart[high] > usable_bytes:
            return None
        while low < high:
            middle = (low + high) // 2
            if whole[num_layers - middle] + apart[middle] <= usable_bytes:
                high = middle
            else:
                low = middle + 1
        return low

    def kv_bytes(self, layer: LayerCost, kind: Kind) -> int:
        """Returns the bytes of a layer's blocks and states."""
        return self.kv_tokens * layer.kv_token_bytes.on(kind) + NUM_STATES * layer.state_bytes

    def _windows(self, expert_bytes: Callable[[LayerCost], int], kind: Kind) -> list[int]:
        return _windows(
            [
                layer.weight_bytes.on(kind) + expert_bytes(layer) + self.kv_bytes(layer, kind)
                for layer in self.costs.layers
            ]
        )


def whole_bytes(costs: ModelCosts, kind: Kind, kv_tokens: int = LEAST_TOKENS) -> int:
    """What a device of that kind needs for all layers, as far as their files show it."""
    memory = LayerMemory(costs, kv_tokens)
    kv_bytes = sum(memory.kv_bytes(layer, kind) for layer in costs.layers)
    return costs.weight_bytes.on(kind) + kv_bytes + memory.beside_bytes(kind)


def _windows(sizes: Sequence[int]) -> list[int]:
    """``[n]``: the most that any n neighbours take. Never less for more of them."""
    if len(set(sizes)) == 1:
        return [sizes[0] * number for number in range(len(sizes) + 1)]
    sums = [0, *accumulate(sizes)]
    return [max(map(sub, sums[number:], sums)) for number in range(len(sums))]
