"""Runs the model that makes drafts: over the same blocks as the model that answers, in a storage of
its own.

    fill      positions [start, end) of a sequence ─▶ their keys and values
    draft     each sequence's last tokens ─▶ the likeliest next one, and so on: one forward a token

What it leaves at a position belongs to the token there, so blocks that sequences share hold what
all of them need. It is the only file of drafting that knows tensors.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.scheduling.sequence import Sequence
from inference.engine.speculation.draft_model import DraftRow
from inference.engine.to_device import all_on_device, read_back
from inference.models.backend import AnyModel, KVStorage
from inference.models.batch import Batch, PrefillSpan

Ints = npt.NDArray[np.int64]


class DraftRunner:
    """A ``Drafter``."""

    follows = False

    def __init__(
        self, model: AnyModel, kv: KVStorage, *, vocab_size: int, num_positions: int
    ) -> None:
        """``kv`` has as many blocks as the answering model's, of the same size. ``vocab_size`` is
        the answering model's: the two may fill up one vocabulary to different sizes.
        ``num_positions``: longer texts it does not read."""
        self._model = model
        self._kv = kv
        self._vocab_size = vocab_size
        self._last_id = model.config.vocab_size - 1
        self.num_positions = num_positions

    @torch.inference_mode()
    def fill(self, sequence: Sequence, start: int, end: int) -> None:
        size = self._kv.block_tokens
        positions = np.arange(start, end)
        token_ids = self._ids(sequence.token_ids[start:end])
        blocks = np.array(sequence.block_ids[: -(-end // size)], dtype=np.int64)
        slots = blocks[positions // size] * size + positions % size
        last_row = np.array([end - start - 1])
        arrays = [token_ids, positions, slots, last_row, blocks]
        ids, places, on_slots, logit_rows, block_ids = all_on_device(arrays, self._model.device)
        span = PrefillSpan(0, end - start, start, end, block_ids)
        batch = Batch(ids, places, on_slots, spans=(span,), logit_rows=logit_rows)
        self._model.forward(batch, self._kv)

    @torch.inference_mode()
    def draft(self, rows: Ordered[DraftRow]) -> list[list[int]]:
        """Drafts as many tokens for each row as its ``length``. Waits for the device once."""
        ordered = sorted(range(len(rows)), key=lambda index: -rows[index].length)
        steps = _Steps([rows[index] for index in ordered], self._kv.block_tokens)
        arrays = [self._ids(steps.token_ids), *steps.arrays()]
        first_ids, *tensors = all_on_device(arrays, self._model.device)
        last_rows, blocks, *by_step = tensors
        found = [self._first(steps, first_ids, last_rows, blocks, *by_step[:2])]
        for depth in range(1, len(by_step) // 2):
            places, slots = by_step[2 * depth : 2 * depth + 2]
            num_rows = len(places)
            batch = Batch(found[-1][:num_rows], places, slots, blocks[:num_rows])
            found.append(self._likeliest(self._model.forward(batch, self._kv)))
        drafts: list[list[int]] = [[] for _ in rows]
        for token_ids in read_back(found):
            for index, token_id in zip(ordered, token_ids, strict=False):
                drafts[index].append(token_id)
        return drafts

    def _first(
        self,
        steps: _Steps,
        token_ids: torch.Tensor,
        last_rows: torch.Tensor,
        blocks: torch.Tensor,
        places: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """Reads what is new of each sequence, its last token among it."""
        if not steps.has_runs:
            batch = Batch(token_ids, places, slots, blocks)
            return self._likeliest(self._model.forward(batch, self._kv))
        runs = torch.tensor(steps.runs, device=blocks.device)
        batch = Batch(
            token_ids,
            places,
            slots,
            blocks.repeat_interleave(runs, dim=0, output_size=len(token_ids)),
            decode_runs=steps.runs,
        )
        logits = self._model.forward(batch, self._kv)
        return self._likeliest(logits.index_select(0, last_rows))

    def _likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        """(num_rows,) int64 that the answering model has a row for."""
        return logits[:, : self._vocab_size].argmax(dim=-1)

    def _ids(self, token_ids: list[int]) -> Ints:
        """That this model has a row for: what fills up the other's vocabulary means nothing."""
        return np.minimum(_array(token_ids), self._last_id)


class _Steps:
    """The rows of all forwards of one draft, longest drafts first: those that are done leave at the
    end."""

    def __init__(self, rows: list[DraftRow], block_tokens: int) -> None:
        self._rows = rows
        self._size = block_tokens
        self.runs = tuple(len(row.sequence.token_ids) - row.start for row in rows)
        self.has_runs = any(run > 1 for run in self.runs)
        self.token_ids = [t for row in rows for t in row.sequence.token_ids[row.start :]]
        """The token ids of the first forward."""

    def arrays(self) -> list[Ints]:
        """The row of each sequence's last token in the first forward, the blocks of each sequence,
        and positions and slots of each forward."""
        positions = [
            (row.sequence, position)
            for row in self._rows
            for position in range(row.start, len(row.sequence.token_ids))
        ]
        arrays = [np.cumsum(self.runs) - 1, self._blocks()]
        arrays += self._places(positions)
        for depth in range(1, self._rows[0].length):
            arrays += self._places(
                [
                    (row.sequence, len(row.sequence.token_ids) + depth - 1)
                    for row in self._rows
                    if row.length > depth
                ]
            )
        return arrays

    def _blocks(self) -> Ints:
        widest = max(len(row.sequence.block_ids) for row in self._rows)
        table = np.zeros((len(self._rows), widest), dtype=np.int64)
        for index, row in enumerate(self._rows):
            table[index, : len(row.sequence.block_ids)] = row.sequence.block_ids
        return table

    def _places(self, positions: list[tuple[Sequence, int]]) -> list[Ints]:
        size = self._size
        slots = [s.block_ids[at // size] * size + at % size for s, at in positions]
        return [_array([at for _, at in positions]), _array(slots)]


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
