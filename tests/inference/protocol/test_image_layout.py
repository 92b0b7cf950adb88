"""How many tokens an image becomes, and in which runs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.images import (
    LOW_DETAIL_PIXELS,
    ImageRatioError,
    VisionInput,
    image_grid,
    image_layout,
    num_image_tokens,
)
from tests.cases import each_case

QWEN = VisionInput(
    pad_token_id=151655, patch_px=16, merge=2, min_pixels=65_536, max_pixels=16_777_216
)
SMALL = VisionInput(pad_token_id=1, patch_px=14, merge=2, min_pixels=3_136, max_pixels=200_704)
TILES = VisionInput(
    pad_token_id=1,
    patch_px=14,
    merge=3,
    min_pixels=0,
    max_pixels=1536**2,
    image_px=384,
    division="tiles",
)


@each_case(
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


@each_case(
    ("width_px", "height_px", "qwen", "small"),
    [
        (640, 480, (1, 26, 36), (1, 26, 36)),
        (1_920, 1_080, (1, 24, 42), (1, 24, 42)),
        (100, 100, (1, 16, 16), (1, 8, 8)),
    ],
)
def test_low_detail_reduces_what_is_larger(
    width_px: int, height_px: int, qwen: tuple[int, int, int], small: tuple[int, int, int]
) -> None:
    assert image_grid(width_px, height_px, QWEN, is_low_detail=True) == qwen
    assert image_grid(width_px, height_px, SMALL, is_low_detail=True) == small
    large = msgspec.structs.replace(QWEN, min_pixels=2 * LOW_DETAIL_PIXELS)
    _, height, width = image_grid(width_px, height_px, large, is_low_detail=True)
    assert height * width * large.patch_px**2 >= 0.9 * large.min_pixels


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


def tiles_of_transformers(width_px: int, height_px: int, sizes: VisionInput) -> tuple[int, int]:
    """Rows and columns, by the processor's own steps over an image of no pixels: it resizes
    nothing here, and only the numbers are real."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    class Sized(Idefics3ImageProcessorPil):
        def resize(self, image, size, **kwargs):  # type: ignore[no-untyped-def]
            from transformers.models.idefics3 import image_processing_pil_idefics3 as module

            if size.longest_edge:
                shape = module.get_resize_output_image_size(image, size.longest_edge)
            else:
                shape = (size.height, size.width)
            return np.broadcast_to(np.uint8(0), (3, *shape))

    from transformers.image_utils import SizeDict

    processor, longest = Sized(), int(sizes.max_pixels**0.5)
    image = np.broadcast_to(np.uint8(0), (3, height_px, width_px))
    image = processor.resize(image, SizeDict(longest_edge=longest))
    image = processor.resize_for_vision_encoder(image, sizes.image_px)
    _, rows, columns = processor.split_images(image, {"longest_edge": sizes.image_px})
    return rows, columns


@given(
    st.integers(1, 9_000),
    st.integers(1, 9_000),
    st.sampled_from([384, 400, 767, 768, 1001, 1536, 2048, 4096]),
    st.sampled_from([364, 384, 512]),
)
def test_tiles_are_what_transformers_makes_of_the_size(
    width_px: int, height_px: int, longest_px: int, tile_px: int
) -> None:
    sizes = msgspec.structs.replace(TILES, max_pixels=longest_px**2, image_px=tile_px)
    layout = image_layout(width_px, height_px, sizes)
    assert (layout.rows, layout.columns) == tiles_of_transformers(width_px, height_px, sizes)
    side = tile_px // 14
    assert layout.grid == (layout.rows * layout.columns + 1, side, side)
    assert layout.num_runs == layout.grid[0]


ROWS = VisionInput(
    pad_token_id=1, patch_px=14, merge=2, min_pixels=0, max_pixels=1540**2, division="rows"
)


@given(
    st.integers(1, 9_000),
    st.integers(1, 9_000),
    st.sampled_from([24, 512, 768, 1024, 1540]),
    st.sampled_from([(14, 2), (16, 1)]),
)
def test_rows_are_what_transformers_makes_of_the_size(
    width_px: int, height_px: int, longest_px: int, patches: tuple[int, int]
) -> None:
    from transformers.image_utils import ChannelDimension
    from transformers.models.pixtral.image_processing_pil_pixtral import (
        get_resize_output_image_size,
    )

    patch_px, merge = patches
    changes = {"max_pixels": longest_px**2, "patch_px": patch_px, "merge": merge}
    sizes = msgspec.structs.replace(ROWS, **changes)
    image = np.broadcast_to(np.uint8(0), (height_px, width_px, 3))
    # Of an image one or three pixels high it takes the rows for channels where those are not named.
    wanted = get_resize_output_image_size(
        image, longest_px, patch_px * merge, input_data_format=ChannelDimension.LAST
    )
    if min(wanted) == 0:
        with pytest.raises(ImageRatioError, match="has none left"):
            image_layout(width_px, height_px, sizes)
        return
    layout = image_layout(width_px, height_px, sizes)
    assert layout.grid == (1, wanted[0] // patch_px, wanted[1] // patch_px)
    assert (layout.rows, layout.columns) == (layout.grid[1] // merge, 1)
    assert layout.num_runs == layout.rows


def test_low_detail_reduces_an_image_of_rows() -> None:
    assert image_grid(1540, 770, ROWS) == (1, 56, 110)
    assert image_grid(1540, 770, ROWS, is_low_detail=True) == (1, 20, 38)
    assert image_grid(100, 50, ROWS, is_low_detail=True) == image_grid(100, 50, ROWS)


def test_low_detail_leaves_out_the_tiles() -> None:
    whole = image_layout(640, 480, TILES)
    assert (whole.grid, whole.rows, whole.columns) == ((13, 27, 27), 3, 4)
    assert whole.num_tokens(TILES.merge) == 13 * 81
    low = image_layout(640, 480, TILES, is_low_detail=True)
    assert (low.grid, low.rows, low.num_runs) == ((1, 27, 27), 0, 1)
    uncut = msgspec.structs.replace(TILES, division="none")
    assert image_layout(640, 480, uncut) == low
