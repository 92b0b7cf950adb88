"""Gated DeltaNet as functions of tensors: the part of a linear attention layer between its
projections. Yang et al. 2024, arXiv:2412.06464.

For every token and value head the state S (key_dim, value_dim) forgets by a gate and learns by the
delta rule; a query reads it:

    S ← exp(log_decay) S
    S ← S + k ⊗ beta (v - k S)
    o = q S

``delta_step`` does that for one token of many sequences, ``delta_chunks`` for many tokens of one. A
prompt may be cut anywhere: the state that comes out of one part goes into the next. No function
changes its arguments. Everything is float32, whatever the model's activations are.

Head order: value heads ``[h * group, (h + 1) * group)`` share key head ``h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import pad, softplus

CHUNK_TOKENS = 64
"""Tokens of one triangular system."""
NORM_EPSILON = 1e-6
"""Added to the squared norm that queries and keys are divided by."""


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """A layer's inputs of its tokens, float32. The first axis are tokens: of one sequence, in
    order, or one of each sequence."""

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
    """``log_decay`` and ``beta`` from their projections, (num_tokens, value_heads) each.
    ``decay_rate`` is ``exp(A_log)``, float32 like ``dt_bias``."""
    return -decay_rate * softplus(a.float() + dt_bias), b.float().sigmoid()


def unit_length(heads: torch.Tensor) -> torch.Tensor:
    """Each head divided by its length."""
    return heads * torch.rsqrt(heads.square().sum(dim=-1, keepdim=True) + NORM_EPSILON)


def delta_step(inputs: DeltaInputs, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each sequence. ``states`` (num_rows, value_heads, key_dim, value_dim) -> the
    queries' reads, (num_rows, value_heads, value_dim), and the new states."""
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


class ChunkStates(Protocol):
    def __call__(
        self, carried: torch.Tensor, written: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states that chunks begin with, (chunks, heads, key_dim, value_dim), and the last
        one's next. ``carried`` (chunks, heads, key_dim, key_dim) and ``written``, shaped as the
        states, are A and B of ``delta_chunks``; ``state`` is the first, (heads, key_dim,
        value_dim)."""
        ...


def torch_chunk_states(
    carried: torch.Tensor, written: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    states = [state]
    for carries, writes in zip(carried.unbind(), written.unbind(), strict=True):
        states.append(torch.baddbmm(writes, carries, states[-1]))
    return torch.stack(states[:-1]), states[-1]


def delta_chunks(
    inputs: DeltaInputs, state: torch.Tensor, chunk_states: ChunkStates = torch_chunk_states
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of one sequence. ``state`` (value_heads, key_dim, value_dim) -> the queries' reads,
    (num_tokens, value_heads, value_dim), and the new state.

    Within a chunk the delta rule is a triangular system (arXiv:2412.06464, section 3.3):

        (I + L) u = beta (v - decayed k S)      L strictly lower: beta kᵢ·kⱼ, decayed from j to i

    How a chunk changes the state follows from its tokens alone, so A and B are made for all chunks
    at once, and one product a chunk is left to do in their order:

        S ← A S + B      A = decay of the chunk - writing · from_state      B = writing · learnt

    It is solved by forward substitution. Its inverse as a sum of powers of L is the same number on
    paper, but where a prompt repeats itself the powers overflow before they cancel.
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


def decay_between(total: torch.Tensor) -> torch.Tensor:
    """(..., size) -> (..., size, size): how much a token's part of the state has decayed at each
    later token of the chunk; nothing is left of what comes later. Unmasked it would overflow."""
    size = total.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    logarithm = total.unsqueeze(-1) - total.unsqueeze(-2)
    return logarithm.masked_fill(later, float("-inf")).exp()


def _in_chunks(inputs: DeltaInputs, size: int) -> DeltaInputs:
    """Tensors (chunks, value_heads, size, …). The last chunk is filled up with tokens that change
    nothing: they are nought, learn nothing and forget nothing."""
    group = inputs.values.shape[1] // inputs.keys.shape[1]
    return DeltaInputs(
        queries=cut_in_chunks(inputs.queries, size).repeat_interleave(group, dim=1),
        keys=cut_in_chunks(inputs.keys, size).repeat_interleave(group, dim=1),
        values=cut_in_chunks(inputs.values, size),
        log_decay=cut_in_chunks(inputs.log_decay, size),
        beta=cut_in_chunks(inputs.beta, size),
    )


def cut_in_chunks(tokens: torch.Tensor, size: int) -> torch.Tensor:
    """(num_tokens, heads, …) -> (chunks, heads, size, …), filled up with zeros."""
    missing = -len(tokens) % size
    filled = pad(tokens, (0, 0) * (tokens.dim() - 1) + (0, missing)) if missing else tokens
    return filled.reshape(-1, size, *filled.shape[1:]).transpose(1, 2)
