"""Gated DeltaNet as a layer's mixer: project, convolve, update the state and read it, gate.

    rows ─▶ qkv ─▶ convolution ─▶ q k v ─▶ delta rule ─▶ norm ─▶ · silu(z) ─▶ output
        ─▶ z    ─▶ b, a ─▶ beta, decay ──────┘

Each sequence reads its state in one slot and writes the next one to another; no slot that is read
is written. Rows that decode are done together, prompts one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import rms_norm, silu

from inference.models.batch import Batch, PrefillSpan
from inference.models.config import ModelConfig
from inference.models.delta_config import NEGATIVE_RATE, DeltaConfig
from inference.models.delta_net import (
    DeltaInputs,
    conv_span,
    conv_step,
    delta_chunks,
    delta_step,
    gates,
    unit_length,
)
from inference.models.state_storage import LayerState
from inference.models.step import Step
from inference.models.weights import Linear, WeightSource


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
        qkv = projected.qkv.float()
        log_decay, beta = gates(projected.a, projected.b, self.decay_rate, self.dt_bias)
        batch, num_decodes = step.batch, step.batch.num_decodes
        parts = []
        if num_decodes:
            decays = log_decay[:num_decodes], beta[:num_decodes]
            parts.append(self._decode(qkv[:num_decodes], *decays, batch, layer_cache))
        for span in batch.spans:
            part = slice(span.first_row, span.last_row)
            parts.append(self._prefill(qkv[part], log_decay[part], beta[part], span, layer_cache))
        read = parts[0] if len(parts) == 1 else torch.cat(parts)
        normed = rms_norm(read, self.norm.shape, self.norm, self.norm_eps)
        gated = normed.flatten(1) * silu(projected.z.float())
        return step.product(self.output, gated.to(rows.dtype))

    def _decode(
        self,
        qkv: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        batch: Batch,
        states: LayerState,
    ) -> torch.Tensor:
        reads, writes = batch.state_reads, batch.state_writes
        assert reads is not None and writes is not None
        if batch.decode_runs is not None:
            return self._decode_runs(qkv, log_decay, beta, batch, states)
        return self._decode_rows(qkv, log_decay, beta, reads, writes, states)

    def _decode_runs(
        self,
        qkv: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        batch: Batch,
        states: LayerState,
    ) -> torch.Tensor:
        """The first row of each run, then the second ones: a row reads what the one before it has
        left, so its numbers are those of a step of its own."""
        read = qkv.new_empty(len(qkv), self.shape.num_value_heads, self.shape.value_head_dim)
        for rows, reads, writes in batch.rows_by_depth:
            read[rows] = self._decode_rows(
                qkv[rows], log_decay[rows], beta[rows], reads, writes, states
            )
        return read

    def _decode_rows(
        self,
        qkv: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        reads: torch.Tensor,
        writes: torch.Tensor,
        states: LayerState,
    ) -> torch.Tensor:
        mixed, conv = conv_step(qkv, states.conv.index_select(0, reads), self.conv_weight)
        states.conv.index_copy_(0, writes, conv)
        inputs = self._inputs(mixed, log_decay, beta)
        read, recurrent = delta_step(inputs, states.recurrent.index_select(0, reads))
        states.recurrent.index_copy_(0, writes, recurrent)
        return read

    def _prefill(
        self,
        qkv: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        span: PrefillSpan,
        states: LayerState,
    ) -> torch.Tensor:
        reads, writes = span.state_read, span.state_write
        mixed, conv = conv_span(qkv, states.conv[reads], self.conv_weight)
        states.conv[writes].copy_(conv)
        inputs = self._inputs(mixed, log_decay, beta)
        read, recurrent = delta_chunks(inputs, states.recurrent[reads])
        states.recurrent[writes].copy_(recurrent)
        return read

    def _inputs(
        self, mixed: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor
    ) -> DeltaInputs:
        shape = self.shape
        sizes = [shape.key_features, shape.key_features, shape.value_features]
        queries, keys, values = torch.split(mixed, sizes, dim=-1)
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
        conv_weight=conv_weight(weights, prefix),
        decay_rate=decay_rate(shape, weights, prefix),
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


def conv_weight(weights: WeightSource, prefix: str) -> torch.Tensor:
    """Files have (channels, kernel), or (channels, 1, kernel)."""
    weight = weights.tensor(f"{prefix}conv1d.weight").float()
    return weight.flatten(1).t().contiguous()


def decay_rate(shape: DeltaConfig, weights: WeightSource, prefix: str) -> torch.Tensor:
    stored = weights.tensor(prefix + shape.names.decay).float()
    return -stored if shape.names.decay == NEGATIVE_RATE else stored.exp()
