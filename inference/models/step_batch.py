"""A ``StepInput`` on a device, all of it in one copy: the ``Batch`` that torch's operators take."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from inference.models.batch import EMPTY_STATE, LONE_STATE, Batch, PrefillSpan
from inference.models.step_input import Ints, StepInput, num_blocks
from inference.models.to_device import all_on_device


def batch_on(device: torch.device, step: StepInput) -> Batch:
    count, num_seqs = step.num_decodes, len(step.context_lens)
    runs: tuple[int, ...] = (1,) * count
    has_runs = not step.only_decodes and int(step.query_start[count]) > count
    if has_runs:
        runs = tuple(np.diff(step.query_start[: count + 1]).tolist())
    arrays = [step.positions, step.slots]
    num_unread = 0 if step.unread_ids is None else len(step.unread_ids)
    if num_unread < len(step.positions):
        arrays.append(step.token_ids[num_unread:])
    tensors = iter(all_on_device(arrays + _optional_arrays(step, runs, has_runs), device))
    positions, slots = next(tensors), next(tensors)
    token_ids = step.unread_ids
    if token_ids is None:
        token_ids = next(tensors)
    elif num_unread < len(positions):
        token_ids = torch.cat((token_ids, next(tensors)))
    return Batch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        block_ids=next(tensors) if count else None,
        logit_rows=None if step.logit_rows is None else next(tensors),
        state_reads=next(tensors) if count and step.state_reads is not None else None,
        state_writes=next(tensors) if count and step.state_writes is not None else None,
        spans=tuple(_span(step, index, next(tensors)) for index in range(count, num_seqs)),
        adapters=_adapters(step, runs),
        decode_runs=runs if has_runs else None,
        images=None if step.images is None else step.images.on(device),
    )


def _optional_arrays(step: StepInput, runs: tuple[int, ...], has_runs: bool) -> list[Ints]:
    """Those of rows that decode, then the rows whose logits are wanted, states, and each prompt's
    blocks: as far as there are any."""
    count = step.num_decodes
    arrays = []
    if count:
        table = step.block_table
        if not step.only_decodes:
            width = num_blocks(int(step.context_lens[:count].max()), step.block_tokens)
            table = table[:count, :width]
        arrays.append(np.repeat(table, runs, axis=0) if has_runs else table)
    if step.logit_rows is not None:
        arrays.append(step.logit_rows)
    if count and step.state_reads is not None and step.state_writes is not None:
        arrays += [np.repeat(s[:count], runs) for s in (step.state_reads, step.state_writes)]
    for index in range(count, len(step.context_lens)):
        width = num_blocks(int(step.context_lens[index]), step.block_tokens)
        arrays.append(step.block_table[index, :width])
    return arrays


def _span(step: StepInput, index: int, block_ids: torch.Tensor) -> PrefillSpan:
    first_row, last_row = step.query_start[index : index + 2].tolist()
    end = int(step.context_lens[index])
    reads, writes = step.state_reads, step.state_writes
    return PrefillSpan(
        first_row=first_row,
        last_row=last_row,
        start=end - (last_row - first_row),
        end=end,
        block_ids=block_ids,
        state_read=EMPTY_STATE if reads is None else int(reads[index]),
        state_write=LONE_STATE if writes is None else int(writes[index]),
    )


def _adapters(step: StepInput, runs: tuple[int, ...]) -> tuple[Any, ...] | None:
    """Of each row that decodes, then of each prompt."""
    adapters = step.adapters
    if adapters is None:
        return None
    of_rows = [adapter for adapter, run in zip(adapters, runs, strict=False) for _ in range(run)]
    return (*of_rows, *adapters[step.num_decodes :])
