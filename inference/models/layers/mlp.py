"""The dense MLP: ``down(activation(gate(x)) * up(x))``, or ``down(activation(up(x)))``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import gelu, relu, silu

from inference.models.config import Activation, ModelConfig
from inference.models.families.registry import family_of
from inference.models.step import Step
from inference.models.weights.weight_source import Linear, WeightSource

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "relu2": lambda values: relu(values).square(),
}


@dataclass(frozen=True, slots=True)
class DenseMlp:
    gate_up: Linear
    down: Linear
    activation: Activation
    is_gated: bool

    def __call__(self, rows: torch.Tensor, step: Step) -> torch.Tensor:
        """(num_rows, hidden_size) -> the same shape."""
        return step.product(self.down, self._activate(step.product(self.gate_up, rows), step))

    def _activate(self, gate_up: torch.Tensor, step: Step) -> torch.Tensor:
        if not self.is_gated:
            return ACTIVATIONS[self.activation](gate_up)
        if self.activation == "silu":
            return step.pointwise.gate(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return ACTIVATIONS[self.activation](gate) * up


def load_dense_mlp(config: ModelConfig, weights: WeightSource, index: int) -> DenseMlp:
    names, prefix = family_of(config).layer_names, f"model.layers.{index}."
    return DenseMlp(
        gate_up=weights.linear(*(prefix + name for name in names.gate_up)),
        down=weights.linear(prefix + names.down),
        activation=config.activation,
        is_gated=config.is_gated,
    )
