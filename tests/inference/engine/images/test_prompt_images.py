"""Where a prompt's images are, and by what its tokens are rotated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from inference.engine.images.prompt_images import PromptImages, image_problem
from inference.engine.images.step_images import step_images
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.sequence import Sequence
from inference.models.vision_config import VisionConfig
from inference.protocol.images import SequenceImage
from inference.protocol.sampling import SamplingParams

PAD = 9
VISION = VisionConfig(
    image_token_id=PAD,
    patch_px=16,
    merge=2,
    temporal_patch=2,
    min_pixels=1024,
    max_pixels=24 * 256,
    num_channels=3,
    depth=1,
    hidden_size=8,
    intermediate_size=8,
    num_heads=1,
    out_hidden_size=8,
    num_position_embeddings=4,
    rope_theta=10000.0,
    mrope_section=(1, 1, 1),
)


def image(first_token: int, height: int, width: int, digest: str = "a") -> SequenceImage:
    """``height`` and ``width`` in rows of the decoder."""
    return SequenceImage(
        digest=digest,
        data=b"",
        first_token=first_token,
        num_tokens=height * width,
        grid=(1, 2 * height, 2 * width),
    )


def test_places_of_texts_and_an_image() -> None:
    images = PromptImages([image(3, 2, 3)], 11, merge=2)
    assert images.places(0, 11).tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7],
    ]
    assert images.lag == 3


def test_outputs_continue_where_the_prompt_ends() -> None:
    images = PromptImages([image(0, 1, 4)], 4, merge=2)
    assert images.lag == 0
    assert images.places(4, 6).tolist() == [[4, 5]] * 3
    images = PromptImages([image(1, 2, 2)], 5, merge=2)
    assert images.places(3, 7).tolist() == [[1, 1, 3, 4], [2, 2, 3, 4], [1, 2, 3, 4]]


@pytest.mark.parametrize("cut", range(1, 14))
def test_places_do_not_depend_on_where_a_prompt_is_cut(cut: int) -> None:
    images = PromptImages([image(2, 2, 2), image(7, 1, 3, "b")], 12, merge=2)
    whole = images.places(0, 14).tolist()
    parts = [images.places(0, cut).tolist(), images.places(cut, 14).tolist()]
    assert [first + last for first, last in zip(*parts, strict=True)] == whole


def test_what_blocks_hold_beside_tokens() -> None:
    images = PromptImages([image(2, 2, 2), image(7, 1, 3, "b")], 12, merge=2)
    spans = [(0, 2), (0, 3), (2, 6), (5, 8), (6, 7), (9, 10), (10, 14)]
    contents = [images.content(*span) for span in spans]
    assert contents == [(), ("a",), ("a",), ("a", "b"), (), ("b",), ()]


PROMPT = [1, PAD, PAD, PAD, PAD, 2]


def test_images_that_fit_their_prompt() -> None:
    assert image_problem([image(1, 2, 2)], PROMPT, VISION) is None
    assert image_problem([], PROMPT, None) is None


def test_a_model_that_reads_text_only() -> None:
    problem = image_problem([image(1, 2, 2)], PROMPT, None)
    assert problem == ("vision_unsupported", "this model reads text only")


@pytest.mark.parametrize(
    "changes",
    [
        {"first_token": 0},
        {"first_token": 2},
        {"first_token": -1},
        {"num_tokens": 3},
        {"num_tokens": 0, "grid": (1, 0, 4)},
        {"grid": (2, 2, 4)},
        {"grid": (1, 1, 16)},
        {"num_tokens": 8, "grid": (1, 4, 8)},
    ],
    ids=str,
)
def test_images_that_do_not_fit_their_prompt(changes: dict[str, Any]) -> None:
    fields = {"digest": "a", "data": b"", "first_token": 1, "num_tokens": 4, "grid": (1, 4, 4)}
    problem = image_problem([SequenceImage(**fields | changes)], PROMPT, VISION)
    assert problem is not None and problem[0] == "invalid_image"


def test_images_over_each_other_or_too_large() -> None:
    both = image_problem([image(1, 1, 2), image(2, 1, 2)], PROMPT, VISION)
    large = image_problem([image(0, 1, 7)], [PAD] * 7, VISION)
    assert both is not None and large is not None
    assert large[1] == "an image has more pixels than the model is given"


def test_drafts_are_rotated_as_the_outputs_they_may_become() -> None:
    """Two drafts behind an image, beside a sequence without any."""
    seeing, reading = (
        Sequence(
            name,
            [1, PAD, PAD, PAD, PAD, 2, 3],
            SamplingParams(max_tokens=9),
            context_tokens=64,
            arrival=1,
            deadline_s=0.0,
        )
        for name in ("seeing", "reading")
    )
    seeing.images = PromptImages([image(1, 2, 2)], 7, merge=2)
    schedule = Schedule(decodes=[seeing, reading], drafts={seeing: [4, 5]})
    assert schedule.decode_rows == [seeing, seeing, seeing, reading]
    images = step_images(
        schedule, np.array([6, 7, 8, 6], dtype=np.int32), lambda image: None, torch.device("cpu")
    )  # type: ignore[arg-type, return-value]
    assert images is not None
    assert images.rotary.tolist() == [[4, 5, 6, 6]] * 3


def test_a_chunk_ends_before_an_image_too_many() -> None:
    images = PromptImages([image(2, 2, 2), image(7, 1, 3, "b")], 12, merge=2)
    assert images.end_with_images(0, 12, 1) == 7
    assert images.end_with_images(0, 6, 1) == 6
    assert images.end_with_images(4, 12, 1) == 7, "the rest of the first counts"
    assert images.end_with_images(6, 12, 1) == 12
    assert images.end_with_images(0, 12, 0) == 2
    assert images.end_with_images(8, 12, 0) == 8, "nothing: it begins within one"
    assert images.end_with_images(10, 12, 0) == 12
