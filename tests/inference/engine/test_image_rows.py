"""Rows of images are kept while there is room, the latest used ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from inference.engine.errors import InvalidImageFault
from inference.engine.image_rows import ImageRows
from inference.engine.prompt_images import PromptImages
from inference.engine.scheduling.pace import StepTimes
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.step import PrefillAverage, PrefillChunk, Schedule
from inference.models.errors import InvalidImageError
from inference.models.step_input import ImageEmbeddings
from inference.protocol.images import SequenceImage, TokenRun
from inference.protocol.load import PrefillSpeed
from inference.recent_results import ENTRY_BYTES
from tests.cases import each_case
from tests.inference.engine.asking import sequence_of

ROW_BYTES = 2 * 4 * 3
"""The bytes of a row of the tower below: three numbers for the decoder, and three for a layer."""


class Doubling:
    """Stands in for a tower."""

    def __call__(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> ImageEmbeddings:
        return ImageEmbeddings(2 * patches, (3 * patches,))


class OneNumber:
    def patches(self, data: bytes, grid: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        if not data:
            raise InvalidImageError("it is empty")
        return np.full((grid[1] * grid[2], 3), data[0], dtype=np.float32)


def image(number: int, num_patches: int = 4) -> SequenceImage:
    return SequenceImage(
        digest=str(number),
        data=bytes([number]) if number else b"",
        runs=[TokenRun(0, num_patches // 4)],
        grid=(1, 2, num_patches // 2),
    )


def rows_of(kept_patches: int) -> ImageRows:
    kept_bytes = kept_patches * ROW_BYTES + 2 * ENTRY_BYTES
    return ImageRows(Doubling(), OneNumber(), kept_bytes)  # type: ignore[arg-type]


def test_the_tower_runs_once_for_an_image() -> None:
    rows = rows_of(8)
    first, again = rows.of(image(1)), rows.of(image(1))
    assert first is again and rows.num_runs == 1
    assert first.embeddings.tolist() == [[2.0] * 3] * 4
    assert first.deepstack[0].tolist() == [[3.0] * 3] * 4


@each_case(
    ("kept_patches", "asked", "num_runs"),
    [
        (16, [(1, 4), (1, 8), (1, 4), (1, 8)], 2),  # one file in two sizes
        (8, [(1, 4), (2, 4), (1, 4), (3, 4), (1, 4)], 3),
        (8, [(1, 4), (2, 4), (1, 4), (3, 4), (1, 4), (2, 4)], 4),  # the longest unused made room
        (8, [(1, 4), (2, 36), (2, 36), (1, 4)], 3),  # one larger than all pushes nobody out
    ],
)
def test_the_tower_runs_for_what_is_not_kept(
    kept_patches: int, asked: list[tuple[int, int]], num_runs: int
) -> None:
    rows = rows_of(kept_patches)
    for number, num_patches in asked:
        assert len(rows.of(image(number, num_patches)).embeddings) == num_patches
    assert rows.num_runs == num_runs


def test_a_file_that_cannot_be_read() -> None:
    rows = rows_of(8)
    with pytest.raises(InvalidImageFault, match="it is empty"):
        rows.of(image(0))
    assert rows.num_runs == 0


def test_parts_of_rows_share_no_memory() -> None:
    whole = rows_of(8).of(image(1))
    part = whole.part(1, 3)
    assert len(part.embeddings) == 2 and part.num_bytes == 2 * ROW_BYTES
    part.embeddings.zero_()
    assert whole.embeddings.min() == 2.0
    both = ImageEmbeddings.joined([whole, whole.part(0, 1)])
    assert len(both.embeddings) == 5 and len(both.deepstack[0]) == 5


IMAGE = SequenceImage(digest="a", data=b"", runs=[TokenRun(40, 4)], grid=(1, 4, 4))


def chunk(start: int, end: int, *, has_image: bool = True) -> Schedule:
    images = PromptImages([IMAGE], 100, merge=2) if has_image else None
    sequence = sequence_of([1] * 100, images=images)
    return Schedule(prefills=[PrefillChunk(sequence, start, end, is_last=False)])


def test_which_steps_have_rows_of_an_image() -> None:
    spans = [(0, 40), (0, 41), (42, 43), (43, 60), (44, 60)]
    assert [chunk(*span).has_image_rows for span in spans] == [False, True, True, True, False]
    assert not chunk(0, 100, has_image=False).has_image_rows


@each_case("has_image", [True, False])
def test_the_towers_time_is_no_measure_of_prompt_tokens(has_image: bool) -> None:
    times = StepTimes(
        SchedulerLimits(target_step_s=0.1), PrefillAverage(PrefillSpeed(token_s=0.001))
    )
    before = times.pacer.prefill_tokens(0)
    times.record(chunk(0, 100, has_image=has_image), step_s=30.0, now_s=1.0)
    assert (times.pacer.prefill_tokens(0) == before) == has_image
    assert times.last_forward_unix_s is not None
