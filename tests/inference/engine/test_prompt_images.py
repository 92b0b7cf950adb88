"""Where a prompt's images are, and by what its tokens are rotated. Rows of images are kept while
there is room, the latest used ones."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from inference.engine.errors import InvalidImageFault
from inference.engine.model_runner import ImageRows, last_seen, step_images
from inference.engine.pace import StepTimes
from inference.engine.prompt_images import PromptImages
from inference.engine.sequence import Sequence
from inference.engine.step import PrefillAverage, PrefillChunk, Schedule
from inference.engine.waiting_queue import SchedulerLimits
from inference.models.errors import InvalidImageError
from inference.models.step_input import ImageEmbeddings
from inference.protocol.images import SequenceImage, TokenRun
from inference.protocol.load import PrefillSpeed
from inference.recent_results import ENTRY_BYTES
from tests.inference.engine.conftest import sequence_of
from tests.inference.models.tiny_configs import config_of

PAD = 9
TINY = config_of("qwen3_vl").vision
assert TINY is not None
VISION = replace(TINY, image_token_id=PAD, patch_px=16, min_pixels=1024, max_pixels=24 * 256)


def image(first_token: int, height: int, width: int, digest: str = "a") -> SequenceImage:
    """``height`` and ``width`` in rows of the decoder."""
    return SequenceImage(
        digest=digest,
        data=b"",
        runs=[TokenRun(first_token, height * width)],
        grid=(1, 2 * height, 2 * width),
    )


BOTH = [image(2, 2, 2), image(7, 1, 3, "b")]
WITHIN = [
    [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7],
    [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7],
    [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7],
]


def test_places() -> None:
    for images, num_tokens, span, lag, places in (
        ([image(3, 2, 3)], 11, (0, 11), 3, WITHIN),
        # Outputs continue where the prompt ends.
        ([image(0, 1, 4)], 4, (4, 6), 0, [[4, 5]] * 3),
        ([image(1, 2, 2)], 5, (3, 7), 2, [[1, 1, 3, 4], [2, 2, 3, 4], [1, 2, 3, 4]]),
    ):
        found = PromptImages(images, num_tokens, merge=2)
        assert (found.lag, found.places(*span).tolist()) == (lag, places)
    both = PromptImages(BOTH, 12, merge=2)
    whole = both.places(0, 14).tolist()
    for cut in range(1, 14):
        parts = [both.places(0, cut).tolist(), both.places(cut, 14).tolist()]
        assert [first + last for first, last in zip(*parts, strict=True)] == whole


APART = SequenceImage(
    digest="a",
    data=b"",
    runs=[TokenRun(2, 2), TokenRun(5, 2), TokenRun(8, 4)],
    grid=(1, 4, 8),
)
"""An image whose tokens are in three runs, with one token of text between two of them."""


def test_what_blocks_hold_beside_tokens() -> None:
    images = PromptImages(BOTH, 12, merge=2)
    spans = [(0, 2), (0, 3), (2, 6), (5, 8), (6, 7), (9, 10), (10, 14)]
    first, second = "a 1x4x4", "b 1x2x6"
    expected = [(), (first,), (first,), (first, second), (), (second,), ()]
    assert [images.content(*span) for span in spans] == expected
    smaller = PromptImages([image(2, 1, 2)], 12, merge=2)
    assert smaller.content(2, 3) != images.content(2, 3), "the same file in another size"
    images = PromptImages([APART], 14, merge=2, has_places=False)
    assert images.lag == 0
    spans = [(0, 2), (0, 3), (4, 5), (4, 6), (7, 8), (11, 12), (12, 14), (0, 14)]
    held = [0, 1, 0, 1, 0, 1, 0, 1]
    assert [images.content(*span) for span in spans] == [("a 1x4x8",) * one for one in held]


IN_PARTS = [APART, image(12, 1, 2, "b")]


def test_a_chunk_ends_before_an_image_too_many() -> None:
    for images, start, end, num_images, expected in (
        *((BOTH, 0, 12, 1, 7), (BOTH, 0, 6, 1, 6), (BOTH, 0, 12, 0, 2), (BOTH, 10, 12, 0, 12)),
        *((BOTH, 4, 12, 1, 7), (BOTH, 6, 12, 1, 12)),  # the rest of the first counts
        (BOTH, 8, 12, 0, 8),  # nothing: it begins within one
        *((IN_PARTS, 0, 14, 1, 12), (IN_PARTS, 0, 14, 0, 2)),
        *((IN_PARTS, 4, 14, 0, 5), (IN_PARTS, 5, 14, 0, 5)),  # the text between two runs
    ):
        found = PromptImages(images, 15, merge=2, has_places=False)
        assert found.end_with_images(start, end, num_images) == expected


def test_no_chunk_ends_within_an_image_that_is_seen_whole() -> None:
    def ends(images: list[SequenceImage], num_tokens: int, start: int = 0) -> list[int]:
        whole = PromptImages(images, num_tokens, 2, has_places=False, are_seen_whole=True)
        return [
            whole.end_of_whole(start, end, may_exceed=True)
            for end in range(start + 1, num_tokens + 1)
        ]

    assert PromptImages(BOTH, 12, merge=2).end_of_whole(0, 4, may_exceed=False) == 4
    assert ends(BOTH, 12) == [1, 2, 2, 2, 2, 6, 7, 7, 7, 10, 11, 12]
    assert ends([APART], 13) == [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 12, 13]
    assert ends([APART], 13, 4)[0] == 12
    assert ends(BOTH, 12, 2)[1] == 6
    assert ends(BOTH, 12, 4)[0] == 6, "what was kept is in front"
    whole = PromptImages(BOTH, 12, merge=2, are_seen_whole=True)
    assert whole.end_of_whole(2, 4, may_exceed=False) == 2, "nothing: it begins with it"


def test_what_the_rows_of_an_image_see() -> None:
    def sequence(**how: bool) -> Sequence:
        images = PromptImages([image(1, 2, 2)], 7, merge=2, has_places=False, **how)
        return sequence_of([1, PAD, PAD, PAD, PAD, 2, 3], images=images)

    positions, decoding = np.array([6, 2, 3, 4, 5], dtype=np.int32), sequence()
    cpu, rows = torch.device("cpu"), ImageEmbeddings(torch.zeros(4, 8))
    for seeing, wanted in ((sequence(), None), (sequence(are_seen_whole=True), [6, 4, 4, 4, 5])):
        chunk = PrefillChunk(seeing, 2, 6, is_last=False)
        schedule = Schedule(decodes=[decoding], prefills=[chunk])
        found = last_seen(schedule, positions)
        assert (None if found is None else found.tolist()) == wanted
        images = step_images(schedule, positions, lambda image: rows, cpu)
        assert images is not None and images.rotary is None
        assert images.row_ids.tolist() == [1, 2, 3]
    decodes = Schedule(decodes=[decoding])
    assert step_images(decodes, positions[:1], lambda image: rows, cpu) is None


ROW_BYTES = 2 * 4 * 3
"""The bytes of a row of the tower below: three numbers for the decoder, and three for a layer."""


def stored_image(number: int, num_patches: int = 4) -> SequenceImage:
    return SequenceImage(
        digest=str(number),
        data=bytes([number]) if number else b"",
        runs=[TokenRun(0, num_patches // 4)],
        grid=(1, 2, num_patches // 2),
    )


def rows_of(kept_patches: int) -> ImageRows:
    """Of a tower that doubles the patches of an image, which are all its file's first byte."""

    def patches(data: bytes, grid: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        if not data:
            raise InvalidImageError("it is empty")
        return np.full((grid[1] * grid[2], 3), data[0], dtype=np.float32)

    kept_bytes = kept_patches * ROW_BYTES + 2 * ENTRY_BYTES
    processor: Any = SimpleNamespace(patches=patches)
    tower: Any = lambda patches, grid: ImageEmbeddings(2 * patches, (3 * patches,))  # noqa: E731
    return ImageRows(tower, processor, kept_bytes)


def test_the_tower_runs_for_what_is_not_kept() -> None:
    for kept_patches, asked, num_runs in (
        (16, [(1, 4), (1, 8), (1, 4), (1, 8)], 2),  # one file in two sizes
        (8, [(1, 4), (2, 4), (1, 4), (3, 4), (1, 4)], 3),
        (8, [(1, 4), (2, 4), (1, 4), (3, 4), (1, 4), (2, 4)], 4),  # the longest unused made room
        (8, [(1, 4), (2, 36), (2, 36), (1, 4)], 3),  # one larger than all pushes nobody out
    ):
        rows = rows_of(kept_patches)
        for number, num_patches in asked:
            assert len(rows.of(stored_image(number, num_patches)).embeddings) == num_patches
        assert rows.num_runs == num_runs
        first = rows.of(stored_image(1))
        assert first is rows.of(stored_image(1))
        assert first.embeddings.tolist() == [[2.0] * 3] * 4
        assert first.deepstack[0].tolist() == [[3.0] * 3] * 4
    num_runs = rows.num_runs
    with pytest.raises(InvalidImageFault, match="it is empty"):
        rows.of(stored_image(0))
    assert rows.num_runs == num_runs
    part = first.part(1, 3)  # which shares no memory
    assert len(part.embeddings) == 2 and part.num_bytes == 2 * ROW_BYTES
    part.embeddings.zero_()
    assert first.embeddings.min() == 2.0
    both = ImageEmbeddings.joined([first, first.part(0, 1)])
    assert len(both.embeddings) == 5 and len(both.deepstack[0]) == 5


def test_the_towers_time_is_no_measure_of_prompt_tokens() -> None:
    average = PrefillAverage(PrefillSpeed(token_s=0.001))
    for has_image in (True, False):
        times = StepTimes(SchedulerLimits(target_step_s=0.1), average)
        before = times.pacer.prefill_tokens(0)
        images = PromptImages([image(40, 2, 2)], 100, merge=2) if has_image else None
        sequence = sequence_of([1] * 100, images=images)
        for *span, has_rows in ((0, 40, False), (42, 43, True), (44, 60, False), (0, 100, True)):
            schedule = Schedule(prefills=[PrefillChunk(sequence, *span, is_last=False)])
            assert schedule.has_image_rows == (has_image and has_rows)
        times.record(schedule, step_s=30.0, now_s=1.0)
        assert (times.pacer.prefill_tokens(0) == before) == has_image
        assert times.last_forward_unix_s is not None
