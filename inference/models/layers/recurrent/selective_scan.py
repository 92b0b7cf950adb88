"""Mamba-2 as functions of tensors: what a layer computes between its projections. Dao and Gu 2024,
arXiv:2405.21060.

For every token and head the state S (head_dim, state_size) decays by a gate and adds the token's
value and key; a query reads it:

    S ← exp(log_decay) S + step v ⊗ k
    o = S q

``scan_step`` does that for one token of many sequences, ``scan_chunks`` for many tokens of one. A
prompt may be cut anywhere: the state that comes out of one part goes into the next. No function
changes its arguments. Everything is float32, whatever the model's activations are.

Head order: heads ``[g * per_group, (g + 1) * per_group)`` share keys and queries of group ``g``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from inference.models.layers.recurrent.delta_net import CHUNK_TOKENS, decay_between


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """What a layer's tokens bring, float32. The first axis are tokens: of one sequence, in order,
    or one of each sequence."""

    values: torch.Tensor
    """(num_tokens, heads, head_dim), times their steps."""
    keys: torch.Tensor
    """(num_tokens, groups, state_size): what writes."""
    queries: torch.Tensor
    """(num_tokens, groups, state_size): what reads."""
    log_decay: torch.Tensor
    """(num_tokens, heads), at most 0."""


def scan_step(inputs: ScanInputs, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each sequence. ``states`` (num_rows, heads, head_dim, state_size) -> what the
    queries read, (num_rows, heads, head_dim), and the new states."""
    num_rows, num_heads, head_dim, size = states.shape
    per_group = num_heads // inputs.keys.shape[1]
    keys = inputs.keys.repeat_interleave(per_group, dim=1).view(-1, 1, size)
    queries = inputs.queries.repeat_interleave(per_group, dim=1).view(-1, size, 1)
    after = states * inputs.log_decay.exp()[..., None, None]
    flat = after.view(-1, head_dim, size)
    flat.baddbmm_(inputs.values.reshape(-1, head_dim, 1), keys)
    return torch.bmm(flat, queries).view(num_rows, num_heads, head_dim), after


def scan_chunks(inputs: ScanInputs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of one sequence. ``state`` (heads, head_dim, state_size) -> what the queries read,
    (num_tokens, heads, head_dim), and the new state.

    Within a chunk what queries read of its own tokens is a product of three, masked (section 6):

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
    """Tensors (chunks, heads or groups, size, …). The last chunk is filled up with tokens that
    change nothing: they are nought, and forget nothing."""
    missing = -len(inputs.values) % size

    def cut(tokens: torch.Tensor) -> torch.Tensor:
        filled = pad(tokens, (0, 0) * (tokens.dim() - 1) + (0, missing)) if missing else tokens
        return filled.reshape(-1, size, *filled.shape[1:]).transpose(1, 2)

    return ScanInputs(
        cut(inputs.values), cut(inputs.keys), cut(inputs.queries), cut(inputs.log_decay)
    )
