"""A step's rows through a layer that keeps states: which rows read which slots, and write which.

No slot that is read is written. Decode rows are computed together, prompts one after the other. A
prompt may be cut anywhere: the last inputs of one part are the state that goes into the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.nn.functional import pad

from inference.models.device_step import DeviceStep
from inference.models.layer_configs import NEGATIVE_RATE
from inference.models.paged_kv import LayerState
from inference.models.weight_source import WeightSource

CHUNK_TOKENS = 64
"""Tokens of a prompt that are computed together, before the states between them are."""
Inputs: TypeAlias = tuple[torch.Tensor, ...]
"""A layer's projections of its rows: (num_rows, ...) each."""
Recurrence: TypeAlias = Callable[[Inputs, LayerState], tuple[torch.Tensor, LayerState]]
"""Returns the rows' reads, (num_rows, ...), and the states after; changes neither argument. A
prompt's rows have one state for all, without that axis."""


def through_states(
    inputs: Inputs, step: DeviceStep, slots: LayerState, *, decode: Recurrence, prefill: Recurrence
) -> torch.Tensor:
    """Writes the sequences' next states to ``slots``."""
    parts = []
    if num_rows := step.host.num_decode_rows:
        parts.append(_decoded(_part(inputs, slice(0, num_rows)), step, slots, decode))
    for query in step.prompts:
        reads, writes = step.states_of(query)
        before = LayerState(slots.conv[reads], slots.recurrent[reads])
        read, after = prefill(_part(inputs, slice(query.first_row, query.last_row)), before)
        slots.conv[writes].copy_(after.conv)
        slots.recurrent[writes].copy_(after.recurrent)
        parts.append(read)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decoded(
    inputs: Inputs, step: DeviceStep, slots: LayerState, decode: Recurrence
) -> torch.Tensor:
    """A row reads what the one before it has left: its numbers are those of its own step."""
    if not step.host.has_runs:
        assert step.state_reads is not None and step.state_writes is not None
        chosen = slice(0, step.host.num_decodes)
        return _rows(inputs, step.state_reads[chosen], step.state_writes[chosen], slots, decode)
    found = [
        (rows, _rows(_part(inputs, rows), of_reads, of_writes, slots, decode))
        for rows, of_reads, of_writes in step.decode_rows_by_depth
    ]
    read = found[0][1].new_empty((step.host.num_decode_rows, *found[0][1].shape[1:]))
    for rows, of_rows in found:
        read[rows] = of_rows
    return read


def _rows(
    inputs: Inputs,
    reads: torch.Tensor,
    writes: torch.Tensor,
    slots: LayerState,
    decode: Recurrence,
) -> torch.Tensor:
    before = LayerState(slots.conv.index_select(0, reads), slots.recurrent.index_select(0, reads))
    read, after = decode(inputs, before)
    slots.conv.index_copy_(0, writes, after.conv)
    slots.recurrent.index_copy_(0, writes, after.recurrent)
    return read


def _part(inputs: Inputs, rows: slice | torch.Tensor) -> Inputs:
    return tuple(tensor[rows] for tensor in inputs)


def conv_weight(weights: WeightSource, name: str) -> torch.Tensor:
    """(kernel, channels). Files have (channels, kernel), or (channels, 1, kernel)."""
    weight = weights.tensor(f"{name}.weight").float()
    return weight.flatten(1).t().contiguous()


def decay_rate(weights: WeightSource, name: str) -> torch.Tensor:
    """(heads,). Files have the rate's logarithm, or the negated rate."""
    stored = weights.tensor(name).float().flatten()
    return -stored if name.endswith(NEGATIVE_RATE) else stored.exp()


def conv_step(
    inputs: torch.Tensor, states: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``inputs`` (num_rows, channels), ``states`` (num_rows, kernel - 1, channels), ``weight``
    (kernel, channels) -> (num_rows, channels), and the new states."""
    window = torch.cat((states, inputs.unsqueeze(1)), dim=1)
    return (window * weight).sum(dim=1), window[:, 1:]


def conv_span(
    inputs: torch.Tensor, state: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``inputs`` (num_tokens, channels), ``state`` (kernel - 1, channels) -> the same shapes."""
    num_tokens = len(inputs)
    window = torch.cat((state, inputs))
    summed = window[:num_tokens] * weight[0]
    for back in range(1, len(weight)):
        summed.addcmul_(window[back : back + num_tokens], weight[back])
    return summed, window[num_tokens:]


def cut_in_chunks(tokens: torch.Tensor, size: int) -> torch.Tensor:
    """(num_tokens, heads, …) -> (chunks, heads, size, …), filled up with zeros."""
    missing = -len(tokens) % size
    filled = pad(tokens, (0, 0) * (tokens.dim() - 1) + (0, missing)) if missing else tokens
    return filled.reshape(-1, size, *filled.shape[1:]).transpose(1, 2)


def decay_between(total: torch.Tensor) -> torch.Tensor:
    """(..., size) -> (..., size, size). Later tokens are masked: their exponents would overflow."""
    size = total.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    logarithm = total.unsqueeze(-1) - total.unsqueeze(-2)
    return logarithm.masked_fill(later, float("-inf")).exp()


ChunkStates: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]
]


def torch_chunk_states(
    carried: torch.Tensor, written: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """States that chunks begin with, (chunks, heads, key_dim, value_dim), and the last one's next.
    ``carried`` (chunks, heads, key_dim, key_dim) and ``written`` are A and B of ``delta_chunks``;
    ``state`` (heads, key_dim, value_dim) is the first."""
    states = [state]
    for carries, writes in zip(carried.unbind(), written.unbind(), strict=True):
        states.append(torch.baddbmm(writes, carries, states[-1]))
    return torch.stack(states[:-1]), states[-1]
