"""Norms, each with the residual sum before it, and the gates of MLPs and experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch.nn.functional import layer_norm, relu, rms_norm, silu

from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.layer_configs import ExpertsConfig
from inference.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Norm:
    """``weight`` ``None``: none."""

    weight: torch.Tensor | None = None
    eps: float = 0.0
    bias: torch.Tensor | None = None
    is_rms: bool = False

    def __call__(
        self, hidden: torch.Tensor, added: torch.Tensor | None, pointwise: Pointwise
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, features) each: the sum with ``added``, and its norm. Changes no argument."""
        if self.weight is not None and self.is_rms:
            return pointwise.add_and_norm(hidden, added, self.weight, self.eps)
        if added is not None:
            hidden = hidden + added
        if self.weight is None:
            return hidden, hidden
        return hidden, layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.eps)


def load_norm(config: ModelConfig, weights: WeightSource, name: str) -> Norm:
    """``name``: Hugging Face's, without ``.weight``."""
    if config.norm == "layer":
        bias = weights.tensor(f"{name}.bias") if weights.has(f"{name}.bias") else None
        return Norm(weights.tensor(f"{name}.weight"), config.rms_norm_eps, bias)
    return Norm(rms_weight(config, weights, name), config.rms_norm_eps, is_rms=True)


def head_norm_weights(
    config: ModelConfig, weights: WeightSource, index: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    names = family_of(config).layer_names
    if config.has_plain_qk_norm and config.mixer_kinds[index] != "unrotated":
        ones = torch.ones(config.head_dim, dtype=weights.activation_dtype, device=weights.device)
        return ones, ones
    if not config.qk_norm:
        return None
    prefix = f"model.layers.{index}."
    return (
        rms_weight(config, weights, prefix + names.query_norm),
        rms_weight(config, weights, prefix + names.key_norm),
    )


def rms_weight(config: ModelConfig, weights: WeightSource, name: str) -> torch.Tensor:
    weight = weights.tensor(f"{name}.weight")
    return weight + 1 if config.norm == "rms_plus_one" else weight


class Pointwise(Protocol):
    def add_and_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, features) each: the sum, and its RMS norm by ``weight``. Changes no argument."""
        ...

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """(rows, 2 * features), gates first -> (rows, features): ``silu(gate) * up``."""
        ...


class TorchPointwise:
    def add_and_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if added is not None:
            hidden = hidden + added
        return hidden, rms_norm(hidden, weight.shape, weight, eps)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up


Gate = Callable[[torch.Tensor], torch.Tensor]
"""Gates first, if any: (num_rows, 2 * width), or (num_rows, width) -> (num_rows, width)."""


def gate_of(config: ExpertsConfig) -> Gate:
    if not config.is_gated:
        return squared_relu
    if config.limit is None:
        assert config.swish_gain == 1.0, "no family has the one without the other"
        return TorchPointwise().gate
    return partial(clamped_gate, limit=config.limit, gain=config.swish_gain)


def squared_relu(up: torch.Tensor) -> torch.Tensor:
    return relu(up).square()


def clamped_gate(gate_up: torch.Tensor, *, limit: float, gain: float) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (up + 1) * (gate * torch.sigmoid(gate * gain))
