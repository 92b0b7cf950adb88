"""A step's part of its sequences' images: what its rows are rotated by, and which of them are an
image's. No more of an image's rows is held than the step computes with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.images.prompt_images import Ints
from inference.engine.scheduling.schedule import PrefillChunk, Schedule
from inference.models.batch import StepImages
from inference.models.to_device import on_device
from inference.models.vision.tower import PictureRows
from inference.protocol.images import SequenceImage

RowsOf = Callable[[SequenceImage], PictureRows]


def step_images(
    schedule: Schedule, positions: npt.NDArray[np.int32], rows_of: RowsOf, device: torch.device
) -> StepImages | None:
    """``positions``: of the step's rows. ``None`` where no sequence has an image. Raises what
    ``rows_of`` does."""
    if all(sequence.images is None for sequence in schedule.sequences):
        return None
    places = np.tile(positions.astype(np.int64), (3, 1))
    for row, sequence in enumerate(schedule.decode_rows):
        if sequence.images is not None:
            places[:, row] -= sequence.images.lag
    row_ids: list[int] = []
    parts: list[PictureRows] = []
    first_row = schedule.num_decode_rows
    for chunk in schedule.prefills:
        _add(chunk, first_row, places, row_ids, parts, rows_of)
        first_row += chunk.end - chunk.start
    return StepImages(
        rotary=on_device(places, torch.int64, device),
        row_ids=on_device(row_ids, torch.int64, device),
        rows=PictureRows.joined(parts) if parts else None,
    )


def _add(
    chunk: PrefillChunk,
    first_row: int,
    places: Ints,
    row_ids: list[int],
    parts: list[PictureRows],
    rows_of: RowsOf,
) -> None:
    images = chunk.sequence.images
    if images is None:
        return
    last_row = first_row + chunk.end - chunk.start
    places[:, first_row:last_row] = images.places(chunk.start, chunk.end)
    for image in images.overlapping(chunk.start, chunk.end):
        first = max(chunk.start, image.first_token)
        last = min(chunk.end, image.first_token + image.num_tokens)
        parts.append(rows_of(image).part(first - image.first_token, last - image.first_token))
        row_ids.extend(range(first_row + first - chunk.start, first_row + last - chunk.start))
