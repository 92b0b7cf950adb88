"""Turns a schedule into one batch, and that into logits: one forward a step, whose inputs go to the
device in one copy.

    rows    [ one of each decoding sequence ][ chunk of a prompt ][ chunk ... ]
    drafts  [ its last token ][ its drafts ][ the next one's ... ]

Knows no sampling.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.adapters import Adapters
from inference.engine.cache.block_tables import BlockTables
from inference.engine.images.image_rows import ImageRows
from inference.engine.images.step_pictures import step_pictures
from inference.engine.scheduling.schedule import PrefillChunk, Schedule
from inference.engine.scheduling.sequence import Sequence
from inference.engine.speculation.predictor_runner import PredictorRunner
from inference.engine.to_device import all_on_device
from inference.models.backend import AnyModel, KVStorage
from inference.models.batch import EMPTY_STATE, LONE_STATE, Batch, PrefillSpan

Ints = npt.NDArray[np.int64]


class ModelRunner:
    def __init__(
        self,
        model: AnyModel,
        kv: KVStorage,
        adapters: Adapters | None = None,
        images: ImageRows | None = None,
        predictor: PredictorRunner | None = None,
        *,
        input_device: torch.device | None = None,
    ) -> None:
        """``images``: of a model that is given any. ``predictor``: of a ``DecoderModel``.
        ``input_device``: where the model takes its batches, if that is not its own device."""
        self._model = model
        self._adapters = adapters
        self._kv = kv
        self._images = images
        self._predictor = predictor
        self._device = model.device
        self._input_device = input_device or model.device
        self._block_tables = BlockTables()

    @torch.inference_mode()
    def run(self, schedule: Schedule, unread_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Logits for ``schedule.sampled`` and then for the scored tokens of its prompts:
        (num_sampled + num_scored, vocab_size) float32; those of a sequence with drafts are followed
        by its drafts'. ``unread_ids`` (num_decodes,) int64: one
        more token of each decoding sequence, which only the device knows so far."""
        batch = self._batch(schedule, unread_ids)
        if self._predictor is None:
            return self._model.forward(batch, self._kv)
        assert unread_ids is None
        logits, hidden = self._model.forward_with_hidden(batch, self._kv)
        self._predictor.follow(schedule, hidden)
        return logits

    def forget(self, sequence: Sequence) -> None:
        self._block_tables.forget(sequence.sequence_id)
        if self._predictor is not None:
            self._predictor.forget(sequence)

    def _batch(self, schedule: Schedule, unread_ids: torch.Tensor | None) -> Batch:
        size, sequences = self._kv.block_tokens, schedule.decodes
        runs, wanted = None, None
        if schedule.has_runs:
            assert unread_ids is None
            runs = tuple(schedule.decode_runs)
            sequences, token_ids, positions, wanted = _rows_of_runs(schedule)
        else:
            last = -1 if unread_ids is None else 0
            token_ids = [] if unread_ids is not None else [s.token_ids[-1] for s in sequences]
            positions = [len(s.token_ids) + last for s in sequences]
        slots = [
            s.block_ids[position // size] * size + position % size
            for s, position in zip(sequences, positions, strict=True)
        ]
        logit_rows = list(range(len(sequences))) if wanted is None else wanted
        rows = _Rows(token_ids, positions, slots, logit_rows)
        for chunk in schedule.prefills:
            rows.add(chunk, size)
        arrays = [_array(values) for values in (rows.token_ids, positions, slots)]
        if sequences:
            arrays.append(self._block_tables.rows(sequences))
        if rows.spans:
            arrays += [_array(rows.logit_rows + rows.scored_rows), *map(_array, rows.span_blocks)]
        elif len(logit_rows) < len(sequences):
            arrays.append(_array(logit_rows))
        has_states = bool(sequences) and sequences[0].state_slot is not None
        if has_states:
            arrays.append(_array([_read_slot(s) for s in sequences]))
            arrays.append(_array([_written_slot(s) for s in sequences]))
        ids, *others = all_on_device(arrays, self._input_device)
        if unread_ids is not None:
            ids = torch.cat((unread_ids, ids)) if rows.spans else unread_ids
        states = tuple(others[-2:]) if has_states else (None, None)
        batch = rows.batch(ids, others[:-2] if has_states else others, has_decodes=bool(sequences))
        pictures = None
        if self._images is not None:
            pictures = step_pictures(schedule, positions, self._images.of, self._device)
        has_adapters = self._adapters is not None and self._adapters.are_in_use
        return replace(
            batch,
            state_reads=states[0],
            state_writes=states[1],
            adapters=_adapters_of(sequences, schedule.prefills) if has_adapters else None,
            decode_runs=runs,
            pictures=pictures,
        )


@dataclass(slots=True)
class _Rows:
    """A batch in the making. Rows that decode come first, and their logits too."""

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    logit_rows: list[int]
    scored_rows: list[int] = field(default_factory=list)
    spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    span_states: list[tuple[int, int]] = field(default_factory=list)
    span_blocks: list[list[int]] = field(default_factory=list)

    def add(self, chunk: PrefillChunk, block_tokens: int) -> None:
        first_row, block_ids = len(self.positions), chunk.sequence.block_ids
        self.token_ids.extend(chunk.sequence.token_ids[chunk.start : chunk.end])
        self.positions.extend(range(chunk.start, chunk.end))
        self.slots.extend(
            block_ids[position // block_tokens] * block_tokens + position % block_tokens
            for position in range(chunk.start, chunk.end)
        )
        self.spans.append((first_row, len(self.positions), chunk.start, chunk.end))
        self.span_blocks.append(block_ids[: -(-chunk.end // block_tokens)])
        self.span_states.append((_read_slot(chunk.sequence), _written_slot(chunk.sequence)))
        if chunk.is_last:
            self.logit_rows.append(len(self.positions) - 1)
        self.scored_rows.extend(first_row + position - chunk.start for position in chunk.scored)

    def batch(
        self, token_ids: torch.Tensor, others: list[torch.Tensor], *, has_decodes: bool
    ) -> Batch:
        """``others``: positions, slots, the blocks of rows that decode, rows whose logits are
        wanted, and each span's blocks: as far as there are any."""
        positions, slots, *others = others
        block_ids = others.pop(0) if has_decodes else None
        if not self.spans:
            return Batch(
                token_ids, positions, slots, block_ids, logit_rows=next(iter(others), None)
            )
        logit_rows, *span_blocks = others
        spans = tuple(
            PrefillSpan(*rows, blocks, *states)
            for rows, blocks, states in zip(self.spans, span_blocks, self.span_states, strict=True)
        )
        return Batch(token_ids, positions, slots, block_ids, spans, logit_rows)


def _adapters_of(decodes: list[Sequence], prefills: list[PrefillChunk]) -> tuple[Any, ...] | None:
    """The adapter of each row that decodes, then of each span; ``None``: there are none."""
    found = tuple(s.adapter for s in (*decodes, *(chunk.sequence for chunk in prefills)))
    return None if all(adapter is None for adapter in found) else found


def _rows_of_runs(
    schedule: Schedule,
) -> tuple[list[Sequence], list[int], list[int], list[int]]:
    """Each row's sequence, token and position, and the rows whose logits are wanted.

    run    [ tokens that the state lags behind ][ last token ][ drafts ... ]
                                                [ logits are wanted        ]
    """
    sequences: list[Sequence] = []
    token_ids: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    for sequence in schedule.decodes:
        draft = schedule.drafts.get(sequence, [])
        first = len(sequence.token_ids) - 1 - sequence.num_lagging
        token_ids += [*sequence.token_ids[first:], *draft]
        positions += range(first, len(sequence.token_ids) + len(draft))
        sequences += [sequence] * (len(token_ids) - len(sequences))
        wanted += range(len(sequences) - len(draft) - 1, len(sequences))
    return sequences, token_ids, positions, wanted


def _read_slot(sequence: Sequence) -> int:
    """The slot of the state that a step of the sequence starts from; any where it has none."""
    return sequence.state_slot or EMPTY_STATE


def _written_slot(sequence: Sequence) -> int:
    return sequence.next_state_slot or LONE_STATE


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
