"""Predicts a step's time on a device, from bytes read and numbers multiplied. Pure.

A decode step reads a stage's weights once and each row's keys and values; whichever takes longer,
reading or multiplying, decides. Every layer counts as the model's average one, so that predictions
do not depend on a stage's layer range.
"""

from __future__ import annotations

from fleet.placement.stages.devices import LAYER_S, LOCAL, NETWORK, Speed, StageDevice
from inference.loading.costs.model_costs import Kind, ModelCosts

ROW_BYTES = 2
"""The bytes of one feature of a hidden row on a link: bfloat16."""
CONTEXT_TOKENS = 512
"""The tokens whose keys and values each row reads."""


class StepTimes:
    """Times of one model's steps, for any number of rows (one a sequence)."""

    def __init__(self, costs: ModelCosts) -> None:
        self._costs = costs
        layers, number = costs.layers, len(costs.layers)
        kinds: tuple[Kind, ...] = ("cpu", "cuda")
        self._weight_bytes = {
            kind: sum(layer.weight_bytes.on(kind) for layer in layers) / number for kind in kinds
        }
        self._expert_bytes = {
            kind: sum(layer.expert_bytes.on(kind) for layer in layers) / number for kind in kinds
        }
        self._row_bytes = {
            kind: sum(
                CONTEXT_TOKENS * layer.kv_token_bytes.on(kind) + layer.state_bytes
                for layer in layers
            )
            / number
            for kind in kinds
        }
        self._weights = sum(layer.num_weights for layer in layers) / number
        self._expert_weights = sum(layer.num_expert_weights for layer in layers) / number

    def layer_s(self, device: StageDevice, num_rows: float) -> float:
        return LAYER_S[device.kind] + _slower_s(
            device.speed,
            self._own_bytes(device.kind, num_rows) + self._read_experts(device.kind, num_rows),
            num_rows * (self._weights + self._costs.active_share * self._expert_weights),
        )

    def head_s(self, device: StageDevice, num_rows: float) -> float:
        return _slower_s(
            device.speed,
            self._costs.head_bytes.on(device.kind),
            num_rows * self._costs.num_head_weights,
        )

    def local_s(self, num_rows: float) -> float:
        return LOCAL.latency_s + self._hidden_bytes(num_rows) / LOCAL.bytes_per_s

    def network_s(self, num_rows: float) -> float:
        """A neuron's share of the links to and from it: half of a link belongs to the other end."""
        return NETWORK.latency_s + self._hidden_bytes(num_rows) / NETWORK.bytes_per_s

    def _hidden_bytes(self, num_rows: float) -> float:
        return num_rows * self._costs.hidden_size * ROW_BYTES

    def _own_bytes(self, kind: Kind, num_rows: float) -> float:
        return self._weight_bytes[kind] + num_rows * self._row_bytes[kind]

    def _read_experts(self, kind: Kind, num_rows: float) -> float:
        """Bytes of the experts that at least one row uses, where rows choose evenly."""
        untouched = float((1 - self._costs.active_share) ** num_rows)
        return self._expert_bytes[kind] * (1 - untouched)


def _slower_s(speed: Speed, num_bytes: float, num_products: float) -> float:
    return max(num_bytes / speed.bytes_per_s, 2 * num_products / speed.flops_per_s)
