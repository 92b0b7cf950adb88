"""Runs the model that makes drafts: over the same blocks as the model that answers, in a storage of
its own.

    fill      positions [start, end) of a sequence ─▶ their keys and values
    draft     each sequence's last tokens ─▶ the likeliest next one, and so on: one forward a token

What it leaves at a position belongs to the token there, so blocks that sequences share hold what
all of them need. It is the only file of drafting that knows tensors.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from itertools import accumulate

import numpy as np
import torch

from inference.engine.scheduling.sequence import Sequence
from inference.engine.speculation.draft_model import DraftRow
from inference.models.backend import AnyModel, KVStorage
from inference.models.step_input import Ints, StepInput, block_table_of
from inference.models.to_device import read_back


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
        step = StepInput.of_queries(
            self._ids(sequence.token_ids[start:end]),
            [start],
            [end - start],
            block_table_of([sequence.block_ids]),
            self._kv.block_tokens,
            num_decodes=0,
            logit_rows=[end - start - 1],
        )
        self._model.forward(step, self._kv)

    @torch.inference_mode()
    def draft(self, rows: Ordered[DraftRow]) -> list[list[int]]:
        """Drafts as many tokens for each row as its ``length``. Waits for the device once."""
        ordered = sorted(range(len(rows)), key=lambda index: -rows[index].length)
        found = self._chain([rows[index] for index in ordered])
        drafts: list[list[int]] = [[] for _ in rows]
        for token_ids in read_back(found):
            for index, token_id in zip(ordered, token_ids, strict=False):
                drafts[index].append(token_id)
        return drafts

    def _chain(self, rows: list[DraftRow]) -> list[torch.Tensor]:
        """The likeliest tokens after each forward. The longest drafts come first: those that are
        done leave at the end."""
        table = block_table_of([row.sequence.block_ids for row in rows])
        found = [self._likeliest(self._first_step(rows, table))]
        for depth in range(1, rows[0].length):
            going = [row.sequence for row in rows if row.length > depth]
            num_rows = len(going)
            step = StepInput.of_decodes(
                [0] * num_rows,
                [len(sequence.token_ids) + depth - 1 for sequence in going],
                table[:num_rows],
                self._kv.block_tokens,
                unread_ids=found[-1][:num_rows],
            )
            found.append(self._likeliest(step))
        return found

    def _first_step(self, rows: list[DraftRow], table: Ints) -> StepInput:
        """Reads the new tokens of each sequence, up to its last one."""
        query_lens = [len(row.sequence.token_ids) - row.start for row in rows]
        token_ids = [t for row in rows for t in row.sequence.token_ids[row.start :]]
        return StepInput.of_queries(
            self._ids(token_ids),
            [row.start for row in rows],
            query_lens,
            table,
            self._kv.block_tokens,
            num_decodes=len(rows),
            logit_rows=[end - 1 for end in accumulate(query_lens)],
        )

    def _likeliest(self, step: StepInput) -> torch.Tensor:
        """(num_logits,) int64 that the answering model has a row for."""
        logits = self._model.forward(step, self._kv)
        return logits[:, : self._vocab_size].argmax(dim=-1)

    def _ids(self, token_ids: list[int]) -> Ints:
        """Returns the ids that this model has a row for: what fills up the other's vocabulary means
        nothing."""
        return np.minimum(np.array(token_ids, dtype=np.int32), np.int32(self._last_id))
