"""Mamba-2 as a layer's mixer: project, convolve, update the state and read it, gate, norm.

    rows ─▶ gates | channels | steps
                        │        └─▶ step = softplus(s + bias), decay = exp(-rate * step) ─┐
                        └─▶ convolution, SiLU ─▶ values, keys, queries ─▶ scan ◀───────────┘
            · silu(gates) ─▶ norm ─▶ output ◀─ + skip * values ◀───────────┘

Dao and Gu 2024, arXiv:2405.21060. For every token and head, with state S (head_dim, state_size):

    S ← exp(log_decay) S + step v ⊗ k
    o = S q

``scan_step`` computes one token of many sequences, ``scan_chunks`` many tokens of one, in float32
and without changing arguments. Heads ``[g * per_group, (g + 1) * per_group)`` share keys and
queries of group ``g``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import silu, softplus

from inference.models.config import ModelConfig
from inference.models.layer_configs import MambaConfig
from inference.models.layers.state_rows import (
    CHUNK_TOKENS,
    Inputs,
    conv_span,
    conv_step,
    conv_weight,
    cut_in_chunks,
    decay_between,
    decay_rate,
    through_states,
)
from inference.models.layers.step import Step
from inference.models.paged_kv import LayerState
from inference.models.weight_source import Linear, WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaVectors:
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
        """Writes the sequences' next states."""
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
        """Values, (num_rows, heads, head_dim), and the scan's inputs."""
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


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """float32. The first axis: tokens of one sequence in order, or one of each sequence."""

    values: torch.Tensor
    """(num_tokens, heads, head_dim), times their steps."""
    keys: torch.Tensor
    """(num_tokens, groups, state_size)"""
    queries: torch.Tensor
    """(num_tokens, groups, state_size)"""
    log_decay: torch.Tensor
    """(num_tokens, heads), at most 0."""


def scan_step(inputs: ScanInputs, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(num_rows, heads, head_dim, state_size) -> (num_rows, heads, head_dim), and new states."""
    num_rows, num_heads, head_dim, size = states.shape
    per_group = num_heads // inputs.keys.shape[1]
    keys = inputs.keys.repeat_interleave(per_group, dim=1).view(-1, 1, size)
    queries = inputs.queries.repeat_interleave(per_group, dim=1).view(-1, size, 1)
    after = states * inputs.log_decay.exp()[..., None, None]
    flat = after.view(-1, head_dim, size)
    flat.baddbmm_(inputs.values.reshape(-1, head_dim, 1), keys)
    return torch.bmm(flat, queries).view(num_rows, num_heads, head_dim), after


def scan_chunks(inputs: ScanInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(heads, head_dim, state_size) -> reads (num_tokens, heads, head_dim), and the new state.
    Section 6:

        o = (q kᵀ · decayed from j to i) v  +  decayed q S
    """
    num_tokens, size = len(inputs.values), min(CHUNK_TOKENS, len(inputs.values))
    num_heads, head_dim, state_size = state.shape
    chunks = _in_chunks(inputs, size)
    num_groups = chunks.keys.shape[1]
    grouped = num_groups, num_heads // num_groups * head_dim
    total = chunks.log_decay.cumsum(dim=-1)
    """(chunks, heads, size): logarithm of the decay of the previous state up to each token."""
    left = total.exp().unsqueeze(-1)
    scores = chunks.queries @ chunks.keys.transpose(-1, -2)
    scores = scores.repeat_interleave(num_heads // num_groups, dim=1) * decay_between(total)
    within = scores @ chunks.values
    writing = chunks.values * (total[..., -1:] - total).exp().unsqueeze(-1)
    parts = []
    for index in range(len(within)):
        flat = state.reshape(*grouped, state_size)
        found = torch.bmm(chunks.queries[index], flat.transpose(1, 2))
        found = found.view(num_groups, size, -1, head_dim).transpose(1, 2).flatten(0, 1)
        parts.append(torch.addcmul(within[index], found, left[index]))
        written = writing[index].transpose(1, 2).reshape(*grouped, size)
        added = torch.bmm(written, chunks.keys[index]).view(state.shape)
        state = torch.addcmul(added, state, left[index, :, -1:])
    read = torch.stack(parts).transpose(1, 2).flatten(0, 1)
    return read[:num_tokens], state


def _in_chunks(inputs: ScanInputs, size: int) -> ScanInputs:
    """(chunks, heads or groups, size, …), padded with tokens that change nothing."""
    given = inputs.values, inputs.keys, inputs.queries, inputs.log_decay
    return ScanInputs(*(cut_in_chunks(tokens, size) for tokens in given))
