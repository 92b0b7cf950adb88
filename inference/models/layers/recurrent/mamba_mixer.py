"""Mamba-2 as a layer's mixer: project, convolve, update the state and read it, gate, norm.

    rows ─▶ gates | channels | steps
                        │        └─▶ step = softplus(s + bias), decay = exp(-rate * step) ─┐
                        └─▶ convolution, SiLU ─▶ values, keys, queries ─▶ scan ◀───────────┘
            · silu(gates) ─▶ norm ─▶ output ◀─ + skip * values ◀───────────┘

Which rows go through which states is ``state_rows``'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import silu, softplus

from inference.models.cache.state_storage import LayerState
from inference.models.config import ModelConfig
from inference.models.layers.configs import MambaConfig
from inference.models.layers.recurrent.causal_conv import conv_span, conv_step
from inference.models.layers.recurrent.selective_scan import ScanInputs, scan_chunks, scan_step
from inference.models.layers.recurrent.state_rows import Inputs, through_states
from inference.models.layers.recurrent.state_weights import conv_weight, decay_rate
from inference.models.step import Step
from inference.models.weights.weight_source import Linear, WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaVectors:
    """What a layer has beside its projections."""

    shape: MambaConfig
    conv_weight: torch.Tensor
    """(kernel, channels) float32."""
    conv_bias: torch.Tensor | None
    """(channels,) float32."""
    decay_rate: torch.Tensor
    step_bias: torch.Tensor
    skip: torch.Tensor
    """(heads,) float32 each."""
    norm: torch.Tensor
    """(features,) float32; each group of heads is divided by its own size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaMixer:
    project: Linear
    vectors: MambaVectors
    norm_eps: float
    output: Linear

    def __call__(self, rows: torch.Tensor, step: Step, layer_cache: LayerState) -> torch.Tensor:
        """(num_rows, hidden_size) -> the same shape. Writes the sequences' next states."""
        shape = self.vectors.shape
        sizes = [shape.features, shape.conv_channels, shape.num_heads]
        gates, channels, steps = torch.split(step.product(self.project, rows), sizes, dim=-1)
        inputs = channels.float(), steps.float()
        read = through_states(
            inputs, step.input, layer_cache, decode=self._decode, prefill=self._prefill
        )
        rows_of_groups = (shape.num_groups, -1)
        gated = torch.unflatten(read.flatten(1) * silu(gates.float()), 1, rows_of_groups)
        mean = gated.square().mean(dim=-1, keepdim=True)
        normed = (gated * torch.rsqrt(mean + self.norm_eps)).flatten(1) * self.vectors.norm
        return step.product(self.output, normed.to(rows.dtype))

    def _decode(self, inputs: Inputs, states: LayerState) -> tuple[torch.Tensor, LayerState]:
        channels, steps = inputs
        mixed, conv = conv_step(channels, states.conv, self.vectors.conv_weight)
        values, scanned = self._inputs(mixed, steps)
        read, recurrent = scan_step(scanned, states.recurrent)
        return read + self._skipped(values), LayerState(conv, recurrent)

    def _prefill(self, inputs: Inputs, state: LayerState) -> tuple[torch.Tensor, LayerState]:
        channels, steps = inputs
        mixed, conv = conv_span(channels, state.conv, self.vectors.conv_weight)
        values, scanned = self._inputs(mixed, steps)
        read, recurrent = scan_chunks(scanned, state.recurrent)
        return read + self._skipped(values), LayerState(conv, recurrent)

    def _inputs(self, mixed: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, ScanInputs]:
        """Values, (num_rows, heads, head_dim), and what the scan takes."""
        vectors, shape = self.vectors, self.vectors.shape
        if vectors.conv_bias is not None:
            mixed = mixed + vectors.conv_bias
        sizes = [shape.features, shape.group_features, shape.group_features]
        parts = torch.split(silu(mixed), sizes, dim=-1)
        values = torch.unflatten(parts[0], 1, (shape.num_heads, shape.head_dim))
        keys, queries = (torch.unflatten(part, 1, (shape.num_groups, -1)) for part in parts[1:])
        steps = softplus(steps + vectors.step_bias)
        if shape.step_limit != (0.0, math.inf):
            steps = steps.clamp(*shape.step_limit)
        return values, ScanInputs(
            values * steps.unsqueeze(-1), keys, queries, -vectors.decay_rate * steps
        )

    def _skipped(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.vectors.skip.unsqueeze(-1)


def load_mamba(config: ModelConfig, weights: WeightSource, index: int) -> MambaMixer:
    vectors = load_mamba_vectors(config, weights, index)
    prefix = f"model.layers.{index}.{vectors.shape.prefix}."
    return MambaMixer(
        project=weights.linear(f"{prefix}in_proj"),
        vectors=vectors,
        norm_eps=config.rms_norm_eps,
        output=weights.linear(f"{prefix}out_proj"),
    )


def load_mamba_vectors(config: ModelConfig, weights: WeightSource, index: int) -> MambaVectors:
    shape = config.mamba
    assert shape is not None
    prefix = f"model.layers.{index}.{shape.prefix}."

    def vector(name: str) -> torch.Tensor:
        return weights.tensor(prefix + name).float().flatten().contiguous()

    return MambaVectors(
        shape=shape,
        conv_weight=conv_weight(weights, f"{prefix}conv1d"),
        conv_bias=vector("conv1d.bias") if shape.has_conv_bias else None,
        decay_rate=decay_rate(weights, prefix + shape.decay).contiguous(),
        step_bias=vector("dt_bias"),
        skip=vector("D"),
        norm=vector("norm.weight"),
    )
