"""Gated DeltaNet as a layer's mixer: project, convolve, update the state and read it, gate.

    rows ─▶ qkv ─▶ convolution ─▶ q k v ─▶ delta rule ─▶ norm ─▶ · silu(z) ─▶ output
        ─▶ z    ─▶ b, a ─▶ beta, decay ──────┘

``state_rows`` passes the rows through their states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import rms_norm, silu

from inference.models.config import ModelConfig
from inference.models.layer_configs import DeltaConfig
from inference.models.layers.delta_net import (
    ChunkStates,
    DeltaInputs,
    delta_chunks,
    delta_step,
    gates,
    unit_length,
)
from inference.models.layers.state_rows import (
    Inputs,
    conv_span,
    conv_step,
    conv_weight,
    decay_rate,
    through_states,
)
from inference.models.layers.step import Step
from inference.models.paged_kv import LayerState
from inference.models.weight_source import Linear, WeightSource


@dataclass(frozen=True, slots=True)
class Projected:
    """A layer's projections, (num_rows, features) each."""

    qkv: torch.Tensor
    """``DeltaConfig.conv_channels`` features: queries, keys and values, before the convolution."""
    z: torch.Tensor
    b: torch.Tensor
    a: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaProjections:
    """Two weights. Files have each either plain, one kind after the other with all its heads in
    order, or grouped, from key head to key head with what belongs to it:

        plain qkvz   [ q … ][ k … ][ v …… ][ z …… ]      grouped   [ q k v … z … ][ q k v … z … ] …
        plain ba     [ b …… ][ a …… ]                    grouped   [ b … a … ][ b … a … ] …
    """

    qkvz: Linear
    ba: Linear
    shape: DeltaConfig

    def __call__(self, rows: torch.Tensor, step: Step) -> Projected:
        qkv, z = self._split_qkvz(step.product(self.qkvz, rows))
        ba = step.product(self.ba, rows)
        if self.shape.names.is_ba_grouped:
            ba = ba.view(len(rows), self.shape.num_key_heads, -1)
        b, a = (part.flatten(1) for part in ba.chunk(2, dim=-1))
        return Projected(qkv, z, b, a)

    def _split_qkvz(self, qkvz: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = self.shape
        if not shape.names.is_qkvz_grouped:
            qkv, z = torch.split(qkvz, [shape.conv_channels, shape.value_features], dim=-1)
            return qkv, z
        values = shape.value_features // shape.num_key_heads
        grouped = qkvz.view(len(qkvz), shape.num_key_heads, -1)
        sizes = [shape.key_head_dim, shape.key_head_dim, values, values]
        *parts, z = (part.flatten(1) for part in torch.split(grouped, sizes, dim=-1))
        return torch.cat(parts, dim=-1), z


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMixer:
    shape: DeltaConfig
    project: DeltaProjections
    conv_weight: torch.Tensor
    """(kernel, channels) float32."""
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    """(value_heads,) float32 each."""
    norm: torch.Tensor
    """(value_dim,) float32"""
    norm_eps: float
    output: Linear

    def __call__(self, rows: torch.Tensor, step: Step, layer_cache: LayerState) -> torch.Tensor:
        """(num_rows, hidden_size) -> the same shape. Writes the sequences' next states."""
        projected = self.project(rows, step)
        log_decay, beta = gates(projected.a, projected.b, self.decay_rate, self.dt_bias)
        inputs = projected.qkv.float(), log_decay, beta
        read = through_states(
            inputs,
            step.input,
            layer_cache,
            decode=self._decode,
            prefill=partial(self._prefill, step.chunk_states),
        )
        normed = rms_norm(read, self.norm.shape, self.norm, self.norm_eps)
        gated = normed.flatten(1) * silu(projected.z.float())
        return step.product(self.output, gated.to(rows.dtype))

    def _decode(self, inputs: Inputs, states: LayerState) -> tuple[torch.Tensor, LayerState]:
        qkv, log_decay, beta = inputs
        mixed, conv = conv_step(qkv, states.conv, self.conv_weight)
        read, recurrent = delta_step(self._inputs(mixed, log_decay, beta), states.recurrent)
        return read, LayerState(conv, recurrent)

    def _prefill(
        self, chunk_states: ChunkStates, inputs: Inputs, state: LayerState
    ) -> tuple[torch.Tensor, LayerState]:
        qkv, log_decay, beta = inputs
        mixed, conv = conv_span(qkv, state.conv, self.conv_weight)
        read, recurrent = delta_chunks(
            self._inputs(mixed, log_decay, beta), state.recurrent, chunk_states
        )
        return read, LayerState(conv, recurrent)

    def _inputs(
        self, mixed: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor
    ) -> DeltaInputs:
        shape = self.shape
        sizes = [shape.key_features, shape.key_features, shape.value_features]
        queries, keys, values = torch.split(silu(mixed), sizes, dim=-1)
        key_heads = -1, shape.num_key_heads, shape.key_head_dim
        return DeltaInputs(
            queries=self._for_value_heads(
                unit_length(queries.reshape(key_heads)) * shape.key_head_dim**-0.5
            ),
            keys=self._for_value_heads(unit_length(keys.reshape(key_heads))),
            values=values.reshape(-1, shape.num_value_heads, shape.value_head_dim),
            log_decay=log_decay,
            beta=beta,
        )

    def _for_value_heads(self, heads: torch.Tensor) -> torch.Tensor:
        """(num_rows, key_heads, key_dim) -> one for each value head that a key head serves, where
        value heads stand in another order than theirs."""
        if not self.shape.are_value_heads_tiled:
            return heads
        return heads.repeat(1, self.shape.num_value_heads // self.shape.num_key_heads, 1)


def load_delta(config: ModelConfig, weights: WeightSource, index: int) -> DeltaMixer:
    shape = config.delta
    assert shape is not None
    prefix = f"model.layers.{index}.linear_attn."
    return DeltaMixer(
        shape=shape,
        project=_projections(shape, weights, prefix),
        conv_weight=conv_weight(weights, f"{prefix}conv1d"),
        decay_rate=decay_rate(weights, prefix + shape.names.decay),
        dt_bias=weights.tensor(f"{prefix}dt_bias").float(),
        norm=weights.tensor(f"{prefix}norm.weight").float(),
        norm_eps=config.rms_norm_eps,
        output=weights.linear(f"{prefix}out_proj"),
    )


def _projections(shape: DeltaConfig, weights: WeightSource, prefix: str) -> DeltaProjections:
    names = shape.names
    return DeltaProjections(
        qkvz=weights.linear(*(prefix + name for name in names.qkvz)),
        ba=weights.linear(*(prefix + name for name in names.ba)),
        shape=shape,
    )
