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
from inference.engine.sequence import Sequence
from inference.engine.step import PrefillAverage, PrefillChunk, Schedule
from inference.models.errors import InvalidImageError
from inference.models.step_input import ImageEmbeddings
from inference.protocol.images import SequenceImage, TokenRun
from inference.protocol.load import PrefillSpeed
from inference.protocol.sampling import SamplingParams
from inference.recent_results import ENTRY_BYTES
from tests.cases import each_case

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


def test_one_file_in_two_sizes() -> None:
    rows = rows_of(16)
    sizes = [len(rows.of(image(1, num_patches=number)).embeddings) for number in (4, 8, 4, 8)]
    assert sizes == [4, 8, 4, 8] and rows.num_runs == 2


def test_the_longest_unused_makes_room() -> None:
    rows = rows_of(8)
    for number in (1, 2, 1, 3, 1):
        rows.of(image(number))
    assert rows.num_runs == 3
    rows.of(image(2))
    assert rows.num_runs == 4


def test_an_image_larger_than_all_that_is_kept_pushes_nobody_out() -> None:
    rows = rows_of(8)
    rows.of(image(1))
    for _ in range(2):
        assert len(rows.of(image(2, num_patches=36)).embeddings) == 36
    rows.of(image(1))
    assert rows.num_runs == 3


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
    sequence = Sequence(
        "it",
        [1] * 100,
        SamplingParams(max_tokens=1),
        context_tokens=200,
        arrival=1,
        deadline_s=1.0,
        images=images,
    )
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
