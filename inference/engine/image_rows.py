"""The tower's rows of images, cached by content, and a step's part of them: which of its rows are
an image's, by what they are rotated and how far they see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.errors import InvalidImageFault
from inference.engine.prompt_images import PromptImages
from inference.engine.step import PrefillChunk, Schedule
from inference.models.errors import InvalidImageError
from inference.models.step_input import ImageEmbeddings, Ints, StepImages, on_device
from inference.models.vision_tower import Tower
from inference.protocol.images import SequenceImage
from inference.recent_results import RecentResults


class ImageProcessor(Protocol):
    def patches(self, data: bytes, grid: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        """Returns an image file's patches (num_patches, patch_features), in the order in which they
        are merged. ``grid``: the size that the prompt counts. Raises ``InvalidImageError``."""
        ...


class ImageRows:
    """The rows of images, computed once. Keeps the latest used, up to ``kept_bytes``."""

    def __init__(self, tower: Tower, processor: ImageProcessor, kept_bytes: int) -> None:
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
    """``positions``: of the step's rows. ``None`` where no image matters to the step. Raises what
    ``rows_of`` does."""
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
    """Yields each run of an image's tokens in the step: the image, their row indices into the
    image's rows, and the step's row of the first."""
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
