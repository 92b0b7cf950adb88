"""Runs what makes drafts: a second model, or the model's own predictor. Knows no sampling."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from inference.engine.sequence import Sequence
from inference.engine.speculation.draft_model import DraftRow
from inference.engine.step import Schedule
from inference.models.backend import AnyModel, KVStorage, Predictor
from inference.models.step_input import Ints, StepInput, all_on_device, block_table_of, read_back

log = logging.getLogger(__name__)

FOLLOWING_GAIN = 0.1


class DraftRunner:
    """Runs a second model over the answering model's blocks, in a storage of its own.

    fill      positions [start, end) of a sequence ─▶ their keys and values
    draft     each sequence's last tokens ─▶ the likeliest next one, and so on: one forward a token

    KV at a position depends on the tokens up to there alone, so sequences can share blocks.
    """

    follows = False

    def __init__(
        self, model: AnyModel, kv: KVStorage, *, vocab_size: int, num_positions: int
    ) -> None:
        """``kv`` has as many blocks as the answering model's, of the same size. ``vocab_size`` is
        the answering model's: the two may pad one vocabulary to different sizes."""
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
        """Waits for the device once."""
        drafts = _drafts(rows, self._chain)
        return [drafts[row.sequence] for row in rows]

    def _chain(self, rows: list[DraftRow]) -> list[torch.Tensor]:
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
        """Returns (num_logits,) int64 token ids of the answering model's vocabulary."""
        logits = self._model.forward(step, self._kv)
        return logits[:, : self._vocab_size].argmax(dim=-1)

    def _ids(self, token_ids: list[int]) -> Ints:
        """Clamps ids to this model's vocabulary: ids beyond it are the other's padding."""
        return np.minimum(np.array(token_ids, dtype=np.int32), np.int32(self._last_id))


def _drafts(
    rows: Ordered[DraftRow], chain: Callable[[list[DraftRow]], list[torch.Tensor]]
) -> dict[Sequence, list[int]]:
    """``chain`` gets the longest drafts first, and returns the likeliest tokens of each forward."""
    ordered = sorted(rows, key=lambda row: -row.length)
    drafts: dict[Sequence, list[int]] = {row.sequence: [] for row in ordered}
    for token_ids in read_back(chain(ordered)):
        for row, token_id in zip(ordered, token_ids, strict=False):
            drafts[row.sequence].append(token_id)
    return drafts


@dataclass(frozen=True, slots=True)
class _Kept:
    first_position: int
    hidden: torch.Tensor

    def has(self, position: int) -> bool:
        return 0 <= position - self.first_position < len(self.hidden)


class PredictorRunner:
    """Follows each step, so that the predictor has keys and values of all computed tokens.

    step     rows at      p     p + 1  …  q          hidden rows
    follow   rows at  p - 1     p      …  q - 1      token of each row, hidden row before it
                      └ kept from the step before
    """

    follows = True

    def __init__(
        self,
        predictor: Predictor,
        num_blocks: int,
        block_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._predictor = predictor
        self._kv = predictor.new_kv(num_blocks, block_tokens)
        self._kept: dict[str, _Kept] = {}
        self._has_failed = False
        self._rests = False
        self._clock = clock
        self.following_s = 0.0
        """A faded mean; on a card, which computes after the launch, of the launch alone."""
        self.num_positions = predictor.num_positions

    def fill(self, sequence: Sequence, start: int, end: int) -> None:
        """Nothing: it has followed."""

    def forget(self, sequence: Sequence) -> None:
        self._kept.pop(sequence.sequence_id, None)

    def follow(self, schedule: Schedule, hidden: torch.Tensor) -> None:
        if self._has_failed or self._rests:
            return
        started_s = self._clock()
        try:
            rows = _FollowedRows(self._kept)
            rows.add_step(schedule)
            if rows.token_ids:
                step = rows.step(self._kv.block_tokens)
                self._predictor.forward(step, rows.hidden(hidden), self._kv)
            self._keep(schedule, hidden)
        except Exception:  # whatever an operator raises: answers need no drafts
            log.exception("the predictor failed and is left out from now on")
            self._has_failed = True
            self._kept.clear()
        if not schedule.prefills:
            took_s = self._clock() - started_s
            self.following_s += FOLLOWING_GAIN * (took_s - self.following_s)

    def rest(self) -> None:
        """Follows no step until ``resume``, and then the sequences that begin."""
        self._rests = True
        self._kept.clear()

    def resume(self) -> None:
        self._rests = False

    def _keep(self, schedule: Schedule, hidden: torch.Tensor) -> None:
        first_row = 0
        for sequence, run in zip(schedule.decodes, schedule.decode_query_lens, strict=True):
            position = len(sequence.token_ids) - 1 - sequence.num_lagging
            rows = hidden[first_row : first_row + run]
            if sequence.sequence_id in self._kept:
                self._kept[sequence.sequence_id] = _Kept(position, rows)
            first_row += run
        for chunk in schedule.prefills:
            first_row += chunk.end - chunk.start
            last = hidden[first_row - 1 : first_row].clone()
            self._kept[chunk.sequence.sequence_id] = _Kept(chunk.end - 1, last)

    @torch.inference_mode()
    def draft(self, rows: Ordered[DraftRow]) -> list[list[int]]:
        """A row whose last step it missed gets none. Waits for the device once."""
        ready = [row for row in rows if self._is_ready(row.sequence)]
        drafts = _drafts(ready, self._chain) if ready else {}
        return [drafts.get(row.sequence, []) for row in rows]

    def _is_ready(self, sequence: Sequence) -> bool:
        kept = self._kept.get(sequence.sequence_id)
        return kept is not None and kept.has(len(sequence.token_ids) - 2)

    def _chain(self, rows: list[DraftRow]) -> list[torch.Tensor]:
        sequences = [row.sequence for row in rows]
        table = block_table_of([sequence.block_ids for sequence in sequences])
        hidden = torch.cat([self._last_hidden(sequence) for sequence in sequences])
        found: list[torch.Tensor] = []
        for depth in range(rows[0].length):
            going = [row.sequence for row in rows if row.length > depth]
            count = len(going)
            step = StepInput.of_decodes(
                [sequence.token_ids[-1] for sequence in going],
                [len(sequence.token_ids) - 2 + depth for sequence in going],
                table[:count],
                self._kv.block_tokens,
                unread_ids=found[-1][:count] if found else None,
            )
            hidden = self._predictor.forward(step, hidden[:count], self._kv)
            found.append(self._predictor.logits(hidden).argmax(dim=-1))
        return found

    def _last_hidden(self, sequence: Sequence) -> torch.Tensor:
        kept = self._kept[sequence.sequence_id]
        row = len(sequence.token_ids) - 2 - kept.first_position
        return kept.hidden[row : row + 1]


@dataclass(slots=True)
class _FollowedRows:
    """A step's rows one position earlier, each with the hidden row before it."""

    kept: dict[str, _Kept]
    token_ids: list[int] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _query_lens: list[int] = field(default_factory=list)
    _tables: list[list[int]] = field(default_factory=list)
    _num_decodes: int = 0
    _sources: list[int] = field(default_factory=list)
    """Row index of each hidden row: in the step, or behind its last among the kept ones."""
    _earlier: list[torch.Tensor] = field(default_factory=list)
    _num_rows: int = 0

    def add_step(self, schedule: Schedule) -> None:
        total = sum(schedule.decode_query_lens) + schedule.num_prefill_tokens
        for sequence in schedule.decodes:
            start = len(sequence.token_ids) - 1 - sequence.num_lagging
            tokens = [*sequence.token_ids[start:], *schedule.drafts.get(sequence, ())]
            self._add(sequence, start, tokens, total, decodes=True)
        self._num_decodes = len(self._starts)
        for chunk in schedule.prefills:
            tokens = chunk.sequence.token_ids[chunk.start : chunk.end]
            self._add(chunk.sequence, chunk.start, tokens, total, decodes=False)

    def _add(
        self, sequence: Sequence, start: int, tokens: list[int], total: int, *, decodes: bool
    ) -> None:
        """Skips images, and decoding sequences not followed before: their earlier KV is missing."""
        first_row, self._num_rows = self._num_rows, self._num_rows + len(tokens)
        kept = self.kept.get(sequence.sequence_id)
        if sequence.images is not None or (decodes and kept is None):
            return
        has_first = kept is not None and kept.has(start - 1)
        if has_first and kept is not None:
            row = start - 1 - kept.first_position
            self._sources.append(total + len(self._earlier))
            self._earlier.append(kept.hidden[row : row + 1])
        skipped = 0 if has_first else 1
        if skipped == len(tokens):
            return
        self._sources += range(first_row, first_row + len(tokens) - 1)
        self.token_ids += tokens[skipped:]
        self._starts.append(start - 1 + skipped)
        self._query_lens.append(len(tokens) - skipped)
        self._tables.append(sequence.block_ids)

    def hidden(self, step: torch.Tensor) -> torch.Tensor:
        rows = torch.cat((step, *self._earlier)) if self._earlier else step
        numbers = np.array(self._sources, dtype=np.int32)
        (sources,) = all_on_device(step.device, indices=[numbers])
        return rows.index_select(0, sources)

    def step(self, block_tokens: int) -> StepInput:
        return StepInput.of_queries(
            self.token_ids,
            self._starts,
            self._query_lens,
            block_table_of(self._tables),
            block_tokens,
            num_decodes=self._num_decodes,
        )
