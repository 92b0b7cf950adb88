"""A step's rows through a layer that keeps states: which rows read which slots, and write which.

Each sequence reads its state in one slot and writes the next one to another; no slot that is read
is written. Rows that decode are done together, prompts one after the other. What a layer computes
of rows and states is its mixer's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from inference.models.cache.state_storage import LayerState
from inference.models.device_step import DeviceStep

Inputs: TypeAlias = tuple[torch.Tensor, ...]
"""What a layer has made of its rows: (num_rows, ...) each."""
Recurrence: TypeAlias = Callable[[Inputs, LayerState], tuple[torch.Tensor, LayerState]]
"""What rows read of the states before them, (num_rows, ...), and the states after. Changes neither
argument. Of rows that decode there is a state for each, of a prompt's rows one for all, without
that axis."""


def through_states(
    inputs: Inputs, step: DeviceStep, slots: LayerState, *, decode: Recurrence, prefill: Recurrence
) -> torch.Tensor:
    """What all rows read, in their order. Writes the sequences' next states to ``slots``."""
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
    """Takes the first row of each sequence, then the second ones. A row reads what the one before
    it has left, so its numbers are those of a step of its own."""
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
