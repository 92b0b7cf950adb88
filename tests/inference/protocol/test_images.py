"""How many tokens an image becomes, and what of it travels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    Submit,
    decode_inbox_frame,
    encode_inbox_frame,
)
from inference.protocol.images import (
    ImageRatioError,
    ImageRef,
    VisionInput,
    image_grid,
    num_image_tokens,
)

QWEN = VisionInput(
    pad_token_id=151655, patch_px=16, merge=2, min_pixels=65_536, max_pixels=16_777_216
)
SMALL = VisionInput(pad_token_id=1, patch_px=14, merge=2, min_pixels=3_136, max_pixels=200_704)
CAT = ImageRef(
    digest="c" * 64, media_type="image/png", width_px=640, height_px=480, num_bytes=1_000
)


@pytest.mark.parametrize(
    ("width_px", "height_px", "qwen", "small"),
    [
        (640, 480, (1, 30, 40), (1, 26, 36)),
        (1, 1, (1, 16, 16), (1, 4, 4)),
        (100, 100, (1, 16, 16), (1, 8, 8)),
        (48, 48, (1, 16, 16), (1, 4, 4)),
        (80, 80, (1, 16, 16), (1, 6, 6)),
        (333, 777, (1, 48, 20), (1, 48, 20)),
        (1_920, 1_080, (1, 68, 120), (1, 24, 42)),
        (8_000, 6_000, (1, 220, 294), (1, 26, 36)),
        (32, 6_400, (1, 400, 2), (1, 458, 2)),
    ],
)
def test_a_grid_is_what_transformers_makes_of_the_size(
    width_px: int,
    height_px: int,
    qwen: tuple[int, int, int],
    small: tuple[int, int, int],
) -> None:
    """Its ``smart_resize``, asked for these sizes."""
    assert image_grid(width_px, height_px, QWEN) == qwen
    assert image_grid(width_px, height_px, SMALL) == small


def test_a_grid_has_one_token_for_each_square_of_patches() -> None:
    assert num_image_tokens((1, 30, 40), 2) == 300


def test_an_image_too_narrow_is_refused() -> None:
    with pytest.raises(ImageRatioError, match="32x6401"):
        image_grid(32, 6_401, QWEN)


@given(st.integers(1, 9_000), st.integers(1, 9_000), st.sampled_from([QWEN, SMALL]))
def test_a_grid_merges_evenly_and_is_never_empty(
    width_px: int, height_px: int, sizes: VisionInput
) -> None:
    try:
        time, height, width = image_grid(width_px, height_px, sizes)
    except ImageRatioError:
        return
    assert time == 1
    assert height % sizes.merge == width % sizes.merge == 0
    assert height > 0
    assert width > 0


def test_a_turn_keeps_its_images_between_its_texts() -> None:
    turn = ChatMessage(role="user", content="this\nis?", parts=["this", CAT, "is?"])
    submit = Submit(
        request_id="r",
        gateway_id="g",
        model="m",
        request=GenerationRequest(model="m", input=ChatInput(messages=[turn])),
        deadline_unix_s=1_900_000_000.0,
    )
    received = decode_inbox_frame(encode_inbox_frame(submit))
    assert isinstance(received, Submit)
    assert isinstance(received.request.input, ChatInput)
    (message,) = received.request.input.messages
    assert message == turn
    assert message.images == [CAT]
