"""Images for vision models: their messages, and their tokens.

    body ─▶ ImageRef in a ChatMessage ─▶ Submit          what it is: small, through the inbox
         └▶ bytes ─▶ Redis, under the request's key      beside it, with an expiry
    neuron: both ─▶ SequenceImage ─▶ engine

A layout follows from an image's size alone, so only the engine reads the bytes. Divisions are
``none``: one run; ``tiles``: squares, and the whole image in one behind them; ``rows``: each row of
tokens is a run. Sizes follow transformers' image processors, number for number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

LOW_DETAIL_PIXELS = 512 * 512
"""The most pixels in low detail, unless the model enlarges smaller images to more."""
MAX_RATIO = 200
LONGEST_SIDE_PX = 4096

ImageDivision = Literal["none", "tiles", "rows"]


class PatchSizes(Protocol):
    @property
    def patch_px(self) -> int: ...
    @property
    def merge(self) -> int: ...
    @property
    def min_pixels(self) -> int: ...
    @property
    def max_pixels(self) -> int: ...
    @property
    def image_px(self) -> int: ...
    @property
    def division(self) -> ImageDivision: ...


class ImageRatioError(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class ImageLayout:
    grid: tuple[int, int, int]
    """The number of tiles, and the height and width of each in patches."""
    rows: int = 0
    """Rows of parts that the prompt names; 0: the image is not divided."""
    columns: int = 0
    num_runs: int = 1

    def num_tokens(self, merge: int) -> int:
        return num_image_tokens(self.grid, merge)


def most_pixels(sizes: PatchSizes, *, is_low_detail: bool) -> int:
    if not is_low_detail:
        return sizes.max_pixels
    return min(sizes.max_pixels, max(sizes.min_pixels, LOW_DETAIL_PIXELS))


def longest_side_px(sizes: PatchSizes) -> int:
    return min(math.isqrt(sizes.max_pixels), LONGEST_SIDE_PX)


def image_layout(
    width_px: int, height_px: int, sizes: PatchSizes, *, is_low_detail: bool = False
) -> ImageLayout:
    """Low detail reduces the image, or leaves out its tiles. Raises ``ImageRatioError``."""
    if sizes.division == "rows":
        longest_px = math.isqrt(most_pixels(sizes, is_low_detail=is_low_detail))
        rows, columns = _rows(width_px, height_px, longest_px, sizes.patch_px * sizes.merge)
        return ImageLayout((1, rows * sizes.merge, columns * sizes.merge), rows, 1, rows)
    if not sizes.image_px:
        return ImageLayout(_merged_grid(width_px, height_px, sizes, is_low_detail=is_low_detail))
    side = sizes.image_px // sizes.patch_px
    rows = columns = 0
    if sizes.division == "tiles" and not is_low_detail:
        rows, columns = _tiles(width_px, height_px, longest_side_px(sizes), sizes.image_px)
    num_tiles = rows * columns + 1
    return ImageLayout((num_tiles, side, side), rows, columns, num_tiles)


def image_grid(
    width_px: int, height_px: int, sizes: PatchSizes, *, is_low_detail: bool = False
) -> tuple[int, int, int]:
    return image_layout(width_px, height_px, sizes, is_low_detail=is_low_detail).grid


def num_image_tokens(grid: tuple[int, int, int], merge: int) -> int:
    num_tiles, height, width = grid
    return num_tiles * height * width // merge**2


def _merged_grid(
    width_px: int, height_px: int, sizes: PatchSizes, *, is_low_detail: bool
) -> tuple[int, int, int]:
    """The grid of the Qwen2-VL image processor's smart resize."""
    max_pixels = most_pixels(sizes, is_low_detail=is_low_detail)
    if max(width_px, height_px) > MAX_RATIO * min(width_px, height_px):
        raise ImageRatioError(
            f"the image is {width_px}x{height_px} pixels; one side may be at most {MAX_RATIO} "
            "times as long as the other"
        )
    factor = sizes.patch_px * sizes.merge
    height, width = round(height_px / factor) * factor, round(width_px / factor) * factor
    if height * width > max_pixels:
        shrink = math.sqrt(height_px * width_px / max_pixels)
        height = max(factor, math.floor(height_px / shrink / factor) * factor)
        width = max(factor, math.floor(width_px / shrink / factor) * factor)
    elif height * width < sizes.min_pixels:
        grow = math.sqrt(sizes.min_pixels / (height_px * width_px))
        height = math.ceil(height_px * grow / factor) * factor
        width = math.ceil(width_px * grow / factor) * factor
    return 1, height // sizes.patch_px, width // sizes.patch_px


def _rows(width_px: int, height_px: int, longest_px: int, unit_px: int) -> tuple[int, int]:
    """Rows and columns of tokens of ``unit_px``, as in the Pixtral image processor."""
    ratio = max(height_px / longest_px, width_px / longest_px)
    height, width = height_px, width_px
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    if min(height, width) < 1:
        raise ImageRatioError(
            f"the image is {width_px}x{height_px} pixels, of which one side has none left where "
            f"the other is reduced to {longest_px}"
        )
    return (height - 1) // unit_px + 1, (width - 1) // unit_px + 1


def _tiles(width_px: int, height_px: int, longest_px: int, tile_px: int) -> tuple[int, int]:
    """Rows and columns as in the Idefics3 image processor; none where one tile holds the image."""
    ratio = width_px / height_px
    if width_px >= height_px:
        width, height = longest_px, _even(int(longest_px / ratio))
    else:
        width, height = _even(int(longest_px * ratio)), longest_px
    width, height = max(width, 1), max(height, 1)
    ratio = width / height
    if width >= height:
        columns = math.ceil(width / tile_px)
        rows = math.ceil(int(columns * tile_px / ratio) / tile_px)
    else:
        rows = math.ceil(height / tile_px)
        columns = math.ceil(int(rows * tile_px * ratio) / tile_px)
    return (rows, columns) if rows > 1 or columns > 1 else (0, 0)


def _even(number: int) -> int:
    return number + number % 2


MediaType = Literal["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"]


class ImageRef(msgspec.Struct, frozen=True, kw_only=True):
    """The sides are as shown: Exif's orientation is applied, as by
    ``PIL.ImageOps.exif_transpose``."""

    digest: str
    media_type: MediaType
    width_px: int
    height_px: int
    num_bytes: int
    is_low_detail: bool = False


class TokenRun(msgspec.Struct, frozen=True, array_like=True):
    first_token: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.first_token + self.num_tokens


class SequenceImage(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt's token ids already contain the pad ids of ``runs``."""

    digest: str
    data: bytes
    """The file; the decoder applies its Exif orientation."""
    runs: list[TokenRun]
    """Between runs are tokens of text that name the next part of the image."""
    grid: tuple[int, int, int]
    """The number of tiles, and their height and width in patches, before merging."""

    @property
    def num_tokens(self) -> int:
        return sum(run.num_tokens for run in self.runs)

    @property
    def first_token(self) -> int:
        return self.runs[0].first_token

    @property
    def end(self) -> int:
        return self.runs[-1].end

    @property
    def content_id(self) -> str:
        """One file may be read in two sizes."""
        return f"{self.digest} {'x'.join(map(str, self.grid))}"


class VisionInput(msgspec.Struct, frozen=True, kw_only=True):
    pad_token_id: int
    patch_px: int
    merge: int
    """Patches each way that become one token."""
    min_pixels: int
    max_pixels: int
    image_px: int = 0
    """The side of the square that every image becomes, or each of its tiles; 0: sizes vary."""
    placeholder: str = ""
    """The template's text for an image; empty: the pad, once."""
    written: str = ""
    """Replaces a placeholder before tokenizing: the pad, once, among others. For a divided image
    ``part``, ``row_break`` and ``parts_end`` do."""
    division: ImageDivision = "none"
    part: str = ""
    """The pad, once, among others, and ``{row}`` and ``{column}``, counted from 1."""
    row_break: str = ""
    parts_end: str = ""
    """Follows the last row: of tiles, the text of the whole image, with the pad once."""

    def text_of(self, layout: ImageLayout) -> str:
        if not layout.rows:
            return self.written
        columns = range(1, layout.columns + 1)
        rows = (
            "".join(self.part.format(row=row, column=column) for column in columns)
            for row in range(1, layout.rows + 1)
        )
        return self.row_break.join(rows) + self.parts_end

    def most_text_bytes(self, layout: ImageLayout) -> int:
        """An upper bound for a divided image; 0 for any other."""
        if not layout.rows:
            return 0
        a_part = len(self.part.encode()) + len(self.row_break.encode())
        return layout.rows * layout.columns * a_part + len(self.parts_end.encode())
