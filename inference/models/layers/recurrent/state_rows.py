"""A batch's rows through a layer that keeps states: which rows read which slots, and write which.

Each sequence reads its state in one slot and writes the next one to another; no slot that is read
is written. Rows that decode are done together, prompts one after the other. What a layer computes
of rows and states is its mixer's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from inference.models.batch import Batch
from inference.models.cache.state_storage import LayerState

Inputs: TypeAlias = tuple[torch.Tensor, ...]
"""What a layer has made of its rows: (num_rows, ...) each."""
Recurrence: TypeAlias = Callable[[Inputs, LayerState], tuple[torch.Tensor, LayerState]]
"""What rows read of the states before them, (num_rows, ...), and the states after. Changes neither
argument. Of rows that decode there is a state for each, of a prompt's rows one for all, without
that axis."""


def through_states(
    inputs: Inputs, batch: Batch, slots: LayerState, *, decode: Recurrence, prefill: Recurrence
) -> torch.Tensor:
    """What all rows read, in their order. Writes the sequences' next states to ``slots``."""
    parts = []
    if num_decodes := batch.num_decodes:
        parts.append(_decoded(_part(inputs, slice(0, num_decodes)), batch, slots, decode))
    for span in batch.spans:
        reads, writes = span.state_read, span.state_write
        before = LayerState(slots.conv[reads], slots.recurrent[reads])
        read, after = prefill(_part(inputs, slice(span.first_row, span.last_row)), before)
        slots.conv[writes].copy_(after.conv)
        slots.recurrent[writes].copy_(after.recurrent)
        parts.append(read)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decoded(inputs: Inputs, batch: Batch, slots: LayerState, decode: Recurrence) -> torch.Tensor:
    """Takes the first row of each run, then the second ones. A row reads what the one before it has
    left, so its numbers are those of a step of its own."""
    reads, writes = batch.state_reads, batch.state_writes
    assert reads is not None and writes is not None
    if batch.decode_runs is None:
        return _rows(inputs, reads, writes, slots, decode)
    found = [
        (rows, _rows(_part(inputs, rows), of_reads, of_writes, slots, decode))
        for rows, of_reads, of_writes in batch.rows_by_depth
    ]
    read = found[0][1].new_empty((batch.num_decodes, *found[0][1].shape[1:]))
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
