"""Gated DeltaNet as a layer's mixer: project, convolve, update the state and read it, gate.

    rows ─▶ qkv ─▶ convolution ─▶ q k v ─▶ delta rule ─▶ norm ─▶ · silu(z) ─▶ output
        ─▶ z    ─▶ b, a ─▶ beta, decay ──────┘

Yang et al. 2024, arXiv:2412.06464. For every token and value head, S (key_dim, value_dim):

    S ← exp(log_decay) S
    S ← S + k ⊗ beta (v - k S)
    o = q S

``delta_step`` computes one token of many sequences, ``delta_chunks`` many tokens of one, in float32
and without changing arguments. Value heads ``[h * group, (h + 1) * group)`` share key head
``h``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import rms_norm, silu, softplus

from inference.models.config import ModelConfig
from inference.models.layer_configs import DeltaConfig
from inference.models.layers.state_rows import (
    CHUNK_TOKENS,
    ChunkStates,
    Inputs,
    conv_span,
    conv_step,
    conv_weight,
    cut_in_chunks,
    decay_between,
    decay_rate,
    through_states,
    torch_chunk_states,
)
from inference.models.layers.step import Step
from inference.models.paged_kv import LayerState
from inference.models.weight_source import Linear, WeightSource

NORM_EPSILON = 1e-6
"""Added to the squared norm that queries and keys are divided by."""


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """float32. The first axis: tokens of one sequence in order, or one of each sequence."""

    queries: torch.Tensor
    """(num_tokens, key_heads, key_dim), normalised and scaled."""
    keys: torch.Tensor
    """(num_tokens, key_heads, key_dim), normalised."""
    values: torch.Tensor
    """(num_tokens, value_heads, value_dim)"""
    log_decay: torch.Tensor
    """(num_tokens, value_heads), at most 0."""
    beta: torch.Tensor
    """(num_tokens, value_heads), from 0 to 1: the share of the state's value that is replaced."""


def gates(
    a: torch.Tensor, b: torch.Tensor, decay_rate: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(num_tokens, value_heads), ``log_decay`` and ``beta``. ``decay_rate`` is ``exp(A_log)``."""
    return -decay_rate * softplus(a.float() + dt_bias), b.float().sigmoid()


def unit_length(heads: torch.Tensor) -> torch.Tensor:
    return heads * torch.rsqrt(heads.square().sum(dim=-1, keepdim=True) + NORM_EPSILON)


def delta_step(inputs: DeltaInputs, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``states`` (num_rows, value_heads, key_dim, value_dim) -> reads (num_rows, value_heads,
    value_dim), and the new states."""
    num_rows, num_heads, key_dim, value_dim = states.shape
    group = num_heads // inputs.keys.shape[1]
    queries = inputs.queries.repeat_interleave(group, dim=1).view(-1, key_dim, 1)
    keys = inputs.keys.repeat_interleave(group, dim=1).view(-1, key_dim, 1)
    decayed = states * inputs.log_decay.exp()[..., None, None]
    flat = decayed.view(-1, key_dim, value_dim)
    remembered = torch.bmm(keys.transpose(1, 2), flat).view(num_rows, num_heads, value_dim)
    learnt = (inputs.values - remembered) * inputs.beta.unsqueeze(-1)
    flat.baddbmm_(keys, learnt.view(-1, 1, value_dim))
    read = torch.bmm(queries.transpose(1, 2), flat)
    return read.view(num_rows, num_heads, value_dim), decayed


def delta_chunks(
    inputs: DeltaInputs, state: torch.Tensor, chunk_states: ChunkStates = torch_chunk_states
) -> tuple[torch.Tensor, torch.Tensor]:
    """(value_heads, key_dim, value_dim) -> reads (num_tokens, value_heads, value_dim), and the new
    state.

    Within a chunk the delta rule is a triangular system (arXiv:2412.06464, section 3.3):

        (I + L) u = beta (v - decayed k S)      L strictly lower: beta kᵢ·kⱼ, decayed from j to i
        S ← A S + B      A = decay of the chunk - writing · from_state      B = writing · learnt

    It is solved by forward substitution: powers of L, whose sum is its inverse, overflow where a
    prompt repeats itself.
    """
    num_tokens, size = len(inputs.values), min(CHUNK_TOKENS, len(inputs.values))
    chunks = _in_chunks(inputs, size)
    total = chunks.log_decay.cumsum(dim=-1)
    """(chunks, heads, size): logarithm of the decay of the previous state up to each token."""
    left = total.exp().unsqueeze(-1)
    between = decay_between(total)
    weighted_keys = chunks.keys * chunks.beta.unsqueeze(-1)
    system = (weighted_keys @ chunks.keys.transpose(-1, -2)) * between
    wanted = torch.cat((chunks.values * chunks.beta.unsqueeze(-1), weighted_keys * left), dim=-1)
    solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    learnt, from_state = solved.split([state.shape[-1], state.shape[-2]], dim=-1)
    within = (chunks.queries @ chunks.keys.transpose(-1, -2)) * between
    reading = chunks.queries * left
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)
    writing = (chunks.keys * to_end).transpose(-1, -2)
    kept = left[:, :, -1:] * torch.eye(state.shape[-2], device=state.device)
    carried, written = kept - writing @ from_state, writing @ learnt
    before, after = chunk_states(carried, written, state)
    read = within @ (learnt - from_state @ before) + reading @ before
    return read.transpose(1, 2).flatten(0, 1)[:num_tokens], after


def _in_chunks(inputs: DeltaInputs, size: int) -> DeltaInputs:
    """(chunks, value_heads, size, …). The last chunk is padded with tokens that change nothing."""
    group = inputs.values.shape[1] // inputs.keys.shape[1]
    return DeltaInputs(
        queries=cut_in_chunks(inputs.queries, size).repeat_interleave(group, dim=1),
        keys=cut_in_chunks(inputs.keys, size).repeat_interleave(group, dim=1),
        values=cut_in_chunks(inputs.values, size),
        log_decay=cut_in_chunks(inputs.log_decay, size),
        beta=cut_in_chunks(inputs.beta, size),
    )


@dataclass(frozen=True, slots=True)
class Projected:
    """(num_rows, features) each."""

    qkv: torch.Tensor
    """Queries, keys and values, before the convolution."""
    z: torch.Tensor
    b: torch.Tensor
    a: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaProjections:
    """Files have each weight plain, or grouped by key head:

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
        """Writes the sequences' next states."""
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
        """(num_rows, key_heads, key_dim) -> repeated for each value head, where those are tiled."""
        if not self.shape.are_value_heads_tiled:
            return heads
        return heads.repeat(1, self.shape.num_value_heads // self.shape.num_key_heads, 1)


def load_delta(config: ModelConfig, weights: WeightSource, index: int) -> DeltaMixer:
    shape = config.delta
    assert shape is not None
    names, prefix = shape.names, f"model.layers.{index}.linear_attn."
    return DeltaMixer(
        shape=shape,
        project=DeltaProjections(
            qkvz=weights.linear(*(prefix + name for name in names.qkvz)),
            ba=weights.linear(*(prefix + name for name in names.ba)),
            shape=shape,
        ),
        conv_weight=conv_weight(weights, f"{prefix}conv1d"),
        decay_rate=decay_rate(weights, prefix + names.decay),
        dt_bias=weights.tensor(f"{prefix}dt_bias").float(),
        norm=weights.tensor(f"{prefix}norm.weight").float(),
        norm_eps=config.rms_norm_eps,
        output=weights.linear(f"{prefix}out_proj"),
    )
