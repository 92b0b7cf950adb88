"""Turns a schedule into one ``StepInput``, and that into logits: one forward a step. Knows no
sampling.

    rows    [ one of each decoding sequence ][ chunk of a prompt ][ chunk ... ]
    drafts  [ its last token ][ its drafts ][ the next one's ... ]

The tower's rows of images are cached by content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.adapters import Adapters
from inference.engine.errors import InvalidImageFault
from inference.engine.prompt_images import PromptImages
from inference.engine.sequence import Sequence
from inference.engine.speculation.draft_runner import PredictorRunner
from inference.engine.step import PrefillChunk, Schedule
from inference.loading.image_processor import ImageFileProcessor
from inference.models.backend import AnyModel, KVStorage
from inference.models.errors import InvalidImageError
from inference.models.step_input import (
    EMPTY_STATE,
    LONE_STATE,
    ImageEmbeddings,
    Ints,
    StepImages,
    StepInput,
    on_device,
)
from inference.models.vision_tower import Tower
from inference.protocol.images import SequenceImage
from inference.recent_results import RecentResults


class ModelRunner:
    def __init__(
        self,
        model: AnyModel,
        kv: KVStorage,
        adapters: Adapters | None = None,
        images: ImageRows | None = None,
        predictor: PredictorRunner | None = None,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self.kv = kv
        self._images = images
        self._predictor = predictor
        self._block_tables = BlockTables()

    @torch.inference_mode()
    def run(self, schedule: Schedule, unread_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Returns (num_sampled + num_scored, vocab_size) float32: logits of ``schedule.sampled``,
        each followed by its drafts', then of scored prompt tokens. ``unread_ids`` (num_decodes,)
        int64: one more token of each decoding sequence, which the host has not read."""
        step = self.step_input(schedule, unread_ids)
        if self._predictor is None:
            return self._model.forward(step, self.kv)
        assert unread_ids is None
        logits, hidden = self._model.forward_with_hidden(step, self.kv)
        self._predictor.follow(schedule, hidden)
        return logits

    def step_input(self, schedule: Schedule, unread_ids: torch.Tensor | None = None) -> StepInput:
        step = self._step(schedule, unread_ids)
        if self._images is None:
            return step
        images = step_images(schedule, step.positions, self._images.of, self._model.device)
        if images is None:
            return step
        return replace(step, images=images, last_seen=last_seen(schedule, step.positions))

    def forget(self, sequence: Sequence) -> None:
        self._block_tables.forget(sequence.sequence_id)
        if self._predictor is not None:
            self._predictor.forget(sequence)

    def _step(self, schedule: Schedule, unread_ids: torch.Tensor | None) -> StepInput:
        sequences = schedule.sequences
        rows = _Rows.decoding(schedule, unread_ids)
        for chunk in schedule.prefills:
            rows.add(chunk)
        states = None
        if sequences[0].state_slot is not None:
            # A sequence without tokens starts from the empty state, a lone one leaves its own.
            states = (
                [s.state_slot or EMPTY_STATE for s in sequences],
                [s.next_state_slot or LONE_STATE for s in sequences],
            )
        has_adapters = self._adapters is not None and self._adapters.are_in_use
        return StepInput.of_queries(
            rows.token_ids,
            rows.starts,
            rows.query_lens,
            self._block_tables.rows(sequences),
            self.kv.block_tokens,
            num_decodes=len(schedule.decodes),
            logit_rows=rows.wanted(schedule),
            state_slots=states,
            adapters=_adapters_of(sequences) if has_adapters else None,
            unread_ids=unread_ids,
        )


@dataclass(slots=True)
class _Rows:
    """Decoding sequences come first, and their logits too.

    decode   [ tokens that the state lags behind ][ last token ][ drafts ... ]
                                                  [ logits are wanted        ]
    """

    token_ids: list[int]
    starts: list[int]
    query_lens: list[int]
    logit_rows: list[int]
    scored_rows: list[int]

    @classmethod
    def decoding(cls, schedule: Schedule, unread_ids: torch.Tensor | None) -> _Rows:
        sequences = schedule.decodes
        if not schedule.has_long_queries:
            num_rows = len(sequences)
            last = -1 if unread_ids is None else 0
            return cls(
                token_ids=[s.token_ids[-1] for s in sequences],
                starts=[len(s.token_ids) + last for s in sequences],
                query_lens=[1] * num_rows,
                logit_rows=list(range(num_rows)),
                scored_rows=[],
            )
        assert unread_ids is None
        rows = cls([], [], [], [], [])
        for sequence in sequences:
            draft = schedule.drafts.get(sequence, [])
            start = len(sequence.token_ids) - 1 - sequence.num_lagging
            rows._add_query(start, [*sequence.token_ids[start:], *draft])
            end = len(rows.token_ids)
            rows.logit_rows += range(end - len(draft) - 1, end)
        return rows

    def add(self, chunk: PrefillChunk) -> None:
        first_row = len(self.token_ids)
        self._add_query(chunk.start, chunk.sequence.token_ids[chunk.start : chunk.end])
        if chunk.is_last:
            self.logit_rows.append(len(self.token_ids) - 1)
        self.scored_rows += [first_row + position - chunk.start for position in chunk.scored]

    def wanted(self, schedule: Schedule) -> list[int] | None:
        if not schedule.prefills and len(self.logit_rows) == len(self.token_ids):
            return None
        return self.logit_rows + self.scored_rows

    def _add_query(self, start: int, token_ids: list[int]) -> None:
        self.token_ids += token_ids
        self.starts.append(start)
        self.query_lens.append(len(token_ids))


def _adapters_of(sequences: list[Sequence]) -> tuple[Any, ...] | None:
    found = tuple(sequence.adapter for sequence in sequences)
    return None if all(adapter is None for adapter in found) else found


class BlockTables:
    """Unused entries hold block 0, which padding may read and never use."""

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int32] = np.zeros((8, 16), dtype=np.int32)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(7, -1, -1))
        self._copied: dict[str, tuple[list[int], int]] = {}
        """Sequence id -> the list object its row was copied from, and the copied length."""

    def rows(self, sequences: list[Sequence]) -> npt.NDArray[np.int32]:
        """Returns (num_sequences, the most blocks of any of them)."""
        num_columns = 1
        rows = [0] * len(sequences)
        for index, sequence in enumerate(sequences):
            copied = self._copied.get(sequence.sequence_id)
            num_blocks = len(sequence.block_ids)
            if copied is None or copied[1] != num_blocks or copied[0] is not sequence.block_ids:
                self._update(sequence, copied)
            rows[index] = self._row_of[sequence.sequence_id]
            num_columns = max(num_columns, num_blocks)
        return self._table[rows, :num_columns]

    def forget(self, sequence_id: str) -> None:
        if self._copied.pop(sequence_id, None) is not None:
            self._free_rows.append(self._row_of.pop(sequence_id))

    def _update(self, sequence: Sequence, copied: tuple[list[int], int] | None) -> None:
        block_ids = sequence.block_ids
        if copied is None:
            if not self._free_rows:
                self._grow_rows()
            self._row_of[sequence.sequence_id] = self._free_rows.pop()
        while len(block_ids) > self._table.shape[1]:
            self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
        # After a preemption the sequence has another list: everything is new.
        start = copied[1] if copied is not None and copied[0] is block_ids else 0
        row = self._row_of[sequence.sequence_id]
        self._table[row, start : len(block_ids)] = block_ids[start:]
        self._copied[sequence.sequence_id] = (block_ids, len(block_ids))

    def _grow_rows(self) -> None:
        num_rows = self._table.shape[0]
        self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=0)
        self._free_rows.extend(range(2 * num_rows - 1, num_rows - 1, -1))


class ImageRows:
    def __init__(self, tower: Tower, processor: ImageFileProcessor, kept_bytes: int) -> None:
        self._tower = tower
        self._processor = processor
        self._rows: RecentResults[ImageEmbeddings] = RecentResults(
            kept_bytes, lambda _, rows: rows.num_bytes
        )
        self.num_runs = 0

    def of(self, image: SequenceImage) -> ImageEmbeddings:
        return self._rows.get(image.content_id, lambda _: self._compute(image))

    def _compute(self, image: SequenceImage) -> ImageEmbeddings:
        try:
            patches = self._processor.patches(image.data, image.grid)
        except InvalidImageError as error:
            raise InvalidImageFault(str(error)) from None
        self.num_runs += 1
        return self._tower(torch.from_numpy(patches), image.grid)


RowsOf = Callable[[SequenceImage], ImageEmbeddings]


def step_images(
    schedule: Schedule, positions: npt.NDArray[np.int32], rows_of: RowsOf, device: torch.device
) -> StepImages | None:
    """Raises what ``rows_of`` does."""
    row_ids: list[int] = []
    parts: list[ImageEmbeddings] = []
    for image, rows, first_row in _parts(schedule):
        parts.append(rows_of(image).part(rows.start, rows.stop))
        row_ids.extend(range(first_row, first_row + len(rows)))
    rotary = _rotary(schedule, positions)
    if rotary is None and not parts:
        return None
    return StepImages(
        rotary=None if rotary is None else on_device(rotary, torch.int64, device),
        row_ids=on_device(row_ids, torch.int64, device),
        rows=ImageEmbeddings.joined(parts) if parts else None,
    )


def last_seen(schedule: Schedule, positions: npt.NDArray[np.int32]) -> Ints | None:
    """Returns the last position that each row attends to; ``None`` where it is each row's own."""
    found: Ints | None = None
    for image, rows, first_row in _parts(schedule, only_seen_whole=True):
        found = positions.copy() if found is None else found
        found[first_row : first_row + len(rows)] = image.end - 1
    return found


def _parts(
    schedule: Schedule, *, only_seen_whole: bool = False
) -> Iterator[tuple[SequenceImage, range, int]]:
    """Yields (image, indices into the image's rows, the step's first row of them)."""
    for chunk, images, chunk_row in _chunks(schedule):
        if only_seen_whole and not images.are_seen_whole:
            continue
        for image in images.overlapping(chunk.start, chunk.end):
            num_before = 0
            for run in image.runs:
                first, last = max(chunk.start, run.first_token), min(chunk.end, run.end)
                if first < last:
                    row = num_before + first - run.first_token
                    yield image, range(row, row + last - first), chunk_row + first - chunk.start
                num_before += run.num_tokens


def _rotary(schedule: Schedule, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
    """(3, num_rows); ``None`` where every row is rotated by its position."""
    seeing = [sequence.images for sequence in schedule.sequences if sequence.images is not None]
    if not any(images.has_places for images in seeing):
        return None
    places = np.tile(positions.astype(np.int64), (3, 1))
    for row, sequence in enumerate(schedule.decode_rows):
        if sequence.images is not None:
            places[:, row] -= sequence.images.lag
    for chunk, images, chunk_row in _chunks(schedule):
        rows = slice(chunk_row, chunk_row + chunk.end - chunk.start)
        places[:, rows] = images.places(chunk.start, chunk.end)
    return places


def _chunks(schedule: Schedule) -> Iterator[tuple[PrefillChunk, PromptImages, int]]:
    first_row = schedule.num_decode_rows
    for chunk in schedule.prefills:
        if chunk.sequence.images is not None:
            yield chunk, chunk.sequence.images, first_row
        first_row += chunk.end - chunk.start
