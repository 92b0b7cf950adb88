"""Images: how many tokens each becomes, in which runs, what of it travels, and what text a prompt
has for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

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

Grid = tuple[int, int, int]
SMALL = VisionInput(pad_token_id=1, patch_px=14, merge=2, min_pixels=3_136, max_pixels=200_704)
QWEN = msgspec.structs.replace(SMALL, patch_px=16, min_pixels=65_536, max_pixels=16_777_216)
ROWS = msgspec.structs.replace(SMALL, min_pixels=0, max_pixels=1540**2, division="rows")
TILES = msgspec.structs.replace(
    SMALL, merge=3, min_pixels=0, max_pixels=1536**2, image_px=384, division="tiles"
)


@each_case(
    ("size", "is_low_detail", "qwen", "small"),
    [
        ((640, 480), False, (1, 30, 40), (1, 26, 36)),
        ((1, 1), False, (1, 16, 16), (1, 4, 4)),
        ((48, 48), False, (1, 16, 16), (1, 4, 4)),
        ((80, 80), False, (1, 16, 16), (1, 6, 6)),
        ((1_920, 1_080), False, (1, 68, 120), (1, 24, 42)),
        ((8_000, 6_000), False, (1, 220, 294), (1, 26, 36)),
        ((32, 6_400), False, (1, 400, 2), (1, 458, 2)),
        ((640, 480), True, (1, 26, 36), (1, 26, 36)),
        ((1_920, 1_080), True, (1, 24, 42), (1, 24, 42)),
        ((100, 100), True, (1, 16, 16), (1, 8, 8)),
    ],
)
def test_a_grid_is_what_transformers_makes_of_the_size(
    size: tuple[int, int], is_low_detail: bool, qwen: Grid, small: Grid
) -> None:
    for sizes, grid in ((QWEN, qwen), (SMALL, small)):
        assert image_grid(*size, sizes, is_low_detail=is_low_detail) == grid
        assert num_image_tokens(grid, sizes.merge) == grid[1] * grid[2] / sizes.merge**2
    large = msgspec.structs.replace(QWEN, min_pixels=2 * LOW_DETAIL_PIXELS)
    _, height, width = image_grid(*size, large, is_low_detail=True)
    assert height * width * large.patch_px**2 >= 0.9 * large.min_pixels
    with pytest.raises(ImageRatioError, match="2010x10"):
        image_grid(2010, 10, QWEN)
    assert image_grid(2000, 10, QWEN)


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


PIXELS = st.integers(1, 9_000)


@given(
    PIXELS,
    PIXELS,
    st.sampled_from([384, 400, 767, 768, 1001, 1536, 2048, 4096]),
    st.sampled_from([364, 384, 512]),
)
def test_tiles_are_transformers(
    width_px: int, height_px: int, longest_px: int, tile_px: int
) -> None:
    sizes = msgspec.structs.replace(TILES, max_pixels=longest_px**2, image_px=tile_px)
    layout = image_layout(width_px, height_px, sizes)
    assert (layout.rows, layout.columns) == tiles_of_transformers(width_px, height_px, sizes)
    side = tile_px // 14
    assert layout.grid == (layout.rows * layout.columns + 1, side, side)
    assert layout.num_runs == layout.grid[0]


@given(PIXELS, PIXELS, st.sampled_from([24, 512, 768, 1540]), st.sampled_from([(14, 2), (16, 1)]))
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


def test_low_detail_reduces_rows_and_leaves_out_tiles() -> None:
    assert image_grid(1540, 770, ROWS) == (1, 56, 110)
    assert image_grid(1540, 770, ROWS, is_low_detail=True) == (1, 20, 38)
    assert image_grid(100, 50, ROWS, is_low_detail=True) == image_grid(100, 50, ROWS)
    whole = image_layout(640, 480, TILES)
    assert (whole.grid, whole.rows, whole.columns) == ((13, 27, 27), 3, 4)
    assert whole.num_tokens(TILES.merge) == 13 * 81
    low = image_layout(640, 480, TILES, is_low_detail=True)
    assert (low.grid, low.rows, low.num_runs) == ((1, 27, 27), 0, 1)
    assert image_layout(640, 480, msgspec.structs.replace(TILES, division="none")) == low


SMOL_TILES = msgspec.structs.replace(
    TILES,
    patch_px=16,
    merge=4,
    max_pixels=2048**2,
    image_px=512,
    placeholder="<image>",
    written="<fake_token_around_image><global-img><image><fake_token_around_image>",
    part="<fake_token_around_image><row_{row}_col_{column}><image>",
    row_break="\n",
    parts_end="\n\n<fake_token_around_image><global-img><image><fake_token_around_image>",
)
"""SmolVLM's."""


@each_case("size", [(640, 480), (480, 640), (3000, 20), (512, 512)], ids=str)
@each_case("is_low_detail", [False, True])
def test_the_text_of_tiles_is_transformers(size: tuple[int, int], is_low_detail: bool) -> None:
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    layout = image_layout(*size, SMOL_TILES, is_low_detail=is_low_detail)
    processor = object.__new__(Idefics3Processor)
    processor.fake_image_token, processor.image_token = "<fake_token_around_image>", "<image>"
    processor.global_image_tag, processor.image_seq_len = "<global-img>", 1
    inputs = {"rows": [[layout.rows]], "cols": [[layout.columns]]}
    text = SMOL_TILES.text_of(layout)
    assert text == processor.replace_image_token(inputs, 0)
    assert text.count("<image>") == layout.num_runs
    bound = SMOL_TILES.most_text_bytes(layout)
    assert len(text.encode()) <= bound if layout.rows else bound == 0


def test_the_text_of_rows_is_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its module imports another one, which needs torchvision and is not called here. Both are
    # imported for this test alone.
    folder = "transformers.models.pixtral."
    sizes = SimpleNamespace(get_resize_output_image_size=None)
    monkeypatch.setitem(sys.modules, f"{folder}image_processing_pixtral", sizes)
    monkeypatch.setitem(sys.modules, f"{folder}processing_pixtral", sizes)
    del sys.modules[f"{folder}processing_pixtral"]
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    written = {"placeholder": "[IMG]", "written": "[IMG][IMG_END]", "part": "[IMG]"}
    written |= {"row_break": "[IMG_BREAK]", "parts_end": "[IMG_END]"}
    rows = msgspec.structs.replace(ROWS, **written)
    processor = object.__new__(PixtralProcessor)
    processor.patch_size, processor.spatial_merge_size, processor.image_token = 14, 2, "[IMG]"
    processor.image_break_token, processor.image_end_token = "[IMG_BREAK]", "[IMG_END]"
    for size in ((640, 480), (480, 640), (3000, 20), (20, 20)):
        layout = image_layout(*size, rows)
        _, height, width = layout.grid
        inputs = {"image_sizes": [(14 * height, 14 * width)]}
        wanted = processor.replace_image_token(inputs, 0)
        per_run = layout.num_tokens(rows.merge) // layout.num_runs
        assert rows.text_of(layout).replace("[IMG]", "[IMG]" * per_run) == wanted
        assert len(rows.text_of(layout)) <= rows.most_text_bytes(layout)
