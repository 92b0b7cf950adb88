"""One step's rows as tensors on a device: what torch's operators compute with.

    rows    0 ........ num_decodes ............................ num_rows
            [ one token of each ][ span of a prompt ][ span ... ]
              decoding sequence

Slots and block ids index the keys and values' storage; everything is int64 on the model's device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from inference.models.vision.tower import PictureRows

EMPTY_STATE = 0
"""Slot of the state of a sequence without tokens."""
LONE_STATE = 1
"""Slot of a lone sequence's state, where nobody has to be able to run a step again."""
NUM_LONE_STATES = 2


@dataclass(frozen=True)
class PrefillSpan:
    """Rows ``[first_row, last_row)`` of the batch are positions ``[start, end)`` of one sequence.

    positions   0 .......... start ....... end
                [ in blocks ][ these rows  )
    """

    first_row: int
    last_row: int
    start: int
    end: int
    block_ids: torch.Tensor
    """(ceil(end / block_tokens),)"""
    state_read: int = EMPTY_STATE
    """Slot of the sequence's recurrent state at ``start``."""
    state_write: int = LONE_STATE
    """Slot for that at ``end``."""


@dataclass(frozen=True)
class StepImages:
    """What a step needs of images, where sequences with images take part in it."""

    rotary: torch.Tensor
    """(3, num_rows) what each row is rotated by: its time, height and width. Of a text they are
    one, and may lag behind its position: a picture counts as long as its longer side."""
    row_ids: torch.Tensor
    """(num_picture_rows,) the batch's rows that are a picture's."""
    rows: PictureRows | None = None
    """What those are; ``None`` where there are none."""

    def on(self, device: torch.device) -> StepImages:
        """The same, where its tensors are there already."""
        rows = None if self.rows is None else self.rows.on(device)
        return StepImages(self.rotary.to(device), self.row_ids.to(device), rows)


@dataclass(frozen=True)
class Batch:
    """Decoding rows, prompt rows, or both."""

    token_ids: torch.Tensor
    """(num_rows,)"""
    positions: torch.Tensor
    """(num_rows,)"""
    slots: torch.Tensor
    """(num_rows,) where each row's own keys and values go."""
    block_ids: torch.Tensor | None = None
    """(num_decodes, num_context_blocks) of the decoding rows, where there are any; rows with fewer
    blocks are filled up with any valid id."""
    spans: tuple[PrefillSpan, ...] = ()
    logit_rows: torch.Tensor | None = None
    """(num_logit_rows,) rows whose logits are wanted: all that decode, and then some of the
    prompts'. ``None``: all rows."""
    state_reads: torch.Tensor | None = None
    """(num_decodes,) slots of the recurrent states of the rows that decode, of a model that has
    such states."""
    state_writes: torch.Tensor | None = None
    """(num_decodes,) slots for those after this step."""
    adapters: tuple[Any, ...] | None = None
    """What ``prepare_adapter`` made for each row that decodes and then for each span, ``None`` for
    those that have none; ``None``: nobody has one."""
    images: StepImages | None = None
    """``None`` where no sequence has any: all rows are rotated by their positions. Only the whole
    batch has them: ``decodes`` and ``prompts`` are for attention, whose rows are rotated
    already."""
    decode_runs: tuple[int, ...] | None = None
    """How many of the rows that decode belong to each sequence, one after the other, in order of
    position; ``None``: one. Each row has its own ``block_ids``; of states those of the first row
    count, which the last one leaves behind."""

    @property
    def num_decodes(self) -> int:
        return 0 if self.block_ids is None else self.block_ids.shape[0]

    @property
    def decode_blocks(self) -> torch.Tensor:
        """``block_ids`` of a batch that has rows that decode."""
        assert self.block_ids is not None
        return self.block_ids

    @cached_property
    def first_decodes(self) -> tuple[int, ...]:
        """The row that each run of rows that decode begins with."""
        runs = self.decode_runs or (1,) * self.num_decodes
        return tuple(end - run for end, run in zip(accumulate(runs), runs, strict=True))

    @cached_property
    def rows_by_depth(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """On a model with states: the rows that decode which are their runs' first, second and so
        on, with the slots that each reads and writes."""
        reads, writes, runs = self.state_reads, self.state_writes, self.decode_runs
        assert reads is not None and writes is not None and runs is not None
        found = []
        for depth in range(max(runs)):
            firsts = [f for f, run in zip(self.first_decodes, runs, strict=True) if run > depth]
            first_rows = torch.tensor(firsts, device=reads.device)
            slots = writes[first_rows]
            found.append((first_rows + depth, slots if depth else reads[first_rows], slots))
        return found

    def end(self, block_tokens: int) -> int:
        """No row's position is that high. Known to the host: the positions may be elsewhere."""
        of_decodes = 0 if self.block_ids is None else self.block_ids.shape[1] * block_tokens
        return max([of_decodes, *(span.end for span in self.spans)])

    @cached_property
    def decodes(self) -> Batch:
        """Only the rows that decode."""
        if not self.spans:
            return self
        rows = slice(0, self.num_decodes)
        return replace(
            self,
            token_ids=self.token_ids[rows],
            positions=self.positions[rows],
            slots=self.slots[rows],
            spans=(),
            logit_rows=None,
            adapters=self.adapters and self.adapters[: self.num_decodes],
            images=None,
        )

    @cached_property
    def prompts(self) -> Batch:
        """Only the prompts' rows, counted from the first of them."""
        skipped = self.num_decodes
        if not skipped:
            return self
        logit_rows = self.logit_rows
        return Batch(
            token_ids=self.token_ids[skipped:],
            positions=self.positions[skipped:],
            slots=self.slots[skipped:],
            spans=tuple(
                replace(span, first_row=span.first_row - skipped, last_row=span.last_row - skipped)
                for span in self.spans
            ),
            logit_rows=None if logit_rows is None else logit_rows[skipped:] - skipped,
            adapters=self.adapters and self.adapters[skipped:],
        )
