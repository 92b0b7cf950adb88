"""A step's part of its sequences' images: what its rows are rotated by, which of them are an
image's, and how far those see. No more of an image's rows is held than the step computes with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.images.prompt_images import PromptImages
from inference.engine.scheduling.schedule import PrefillChunk, Schedule
from inference.models.step_input import Ints, StepImages
from inference.models.to_device import on_device
from inference.models.vision.tower import ImageEmbeddings
from inference.protocol.images import SequenceImage

RowsOf = Callable[[SequenceImage], ImageEmbeddings]


def step_images(
    schedule: Schedule, positions: npt.NDArray[np.int32], rows_of: RowsOf, device: torch.device
) -> StepImages | None:
    """``positions``: of the step's rows. ``None`` where no sequence has an image, or none that
    changes anything. Raises what ``rows_of`` does."""
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
    """The last position that each row attends to; ``None`` where it is each row's own."""
    found: Ints | None = None
    for image, rows, first_row in _parts(schedule, only_seen_whole=True):
        found = positions.copy() if found is None else found
        found[first_row : first_row + len(rows)] = image.end - 1
    return found


def _parts(
    schedule: Schedule, *, only_seen_whole: bool = False
) -> Iterator[tuple[SequenceImage, range, int]]:
    """Each run of an image's tokens in the step: the image, which of its rows they are, and the
    row of the step that the first of them is."""
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
    """Chunks of prompts with images, and the first row of each."""
    first_row = schedule.num_decode_rows
    for chunk in schedule.prefills:
        if chunk.sequence.images is not None:
            yield chunk, chunk.sequence.images, first_row
        first_row += chunk.end - chunk.start
