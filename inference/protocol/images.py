"""Images on their way to a model that sees, and how many tokens each becomes.

    body ─▶ ImageRef in a ChatMessage ─▶ Submit          what it is: small, through the inbox
         └▶ bytes ─▶ Redis, under the request's key      beside it, with an expiry
    neuron: both ─▶ SequenceImage ─▶ engine

Sizes are enough to count an image's tokens, so the bytes are not looked at before the engine.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import msgspec

MediaType = Literal["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"]

MAX_RATIO = 200
"""How many times longer than its short side an image's long one may be."""


class ImageRef(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a turn. ``width_px`` and ``height_px`` are as it is shown: the orientation that
    the file's Exif data names is applied, as ``PIL.ImageOps.exif_transpose`` does."""

    digest: str
    """SHA-256 of the file's bytes, in hexadecimal."""
    media_type: MediaType
    width_px: int
    height_px: int
    num_bytes: int


class SequenceImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a sequence's prompt. The prompt's token ids already hold ``num_tokens`` pad ids
    from position ``first_token`` on."""

    digest: str
    """As in ``ImageRef``."""
    data: bytes
    """The file, not decoded. The decoder applies its Exif orientation."""
    first_token: int
    num_tokens: int
    grid: tuple[int, int, int]
    """Time, height and width in patches, before they are merged."""


class VisionInput(msgspec.Struct, frozen=True, kw_only=True):
    """How a loaded model takes images: what rendering and counting need."""

    pad_token_id: int
    """What its template writes once for an image, and its prompt holds once for each token."""
    patch_px: int
    merge: int
    """So many patches each way become one token."""
    min_pixels: int
    max_pixels: int
    """Smaller images are enlarged to the one, larger ones reduced to the other."""


class PatchSizes(Protocol):
    """What a grid follows from."""

    @property
    def patch_px(self) -> int: ...
    @property
    def merge(self) -> int: ...
    @property
    def min_pixels(self) -> int: ...
    @property
    def max_pixels(self) -> int: ...


class ImageRatioError(ValueError):
    """The image is too narrow to be read."""


def image_grid(width_px: int, height_px: int, sizes: PatchSizes) -> tuple[int, int, int]:
    """Time, height and width in patches, of an image resized so that patches merge evenly and its
    pixels are within the bounds: what transformers' Qwen2-VL image processor calls smart resize.
    Raises ``ImageRatioError``."""
    if max(width_px, height_px) > MAX_RATIO * min(width_px, height_px):
        raise ImageRatioError(
            f"the image is {width_px}x{height_px} pixels; one side may be at most {MAX_RATIO} "
            "times as long as the other"
        )
    factor = sizes.patch_px * sizes.merge
    height, width = round(height_px / factor) * factor, round(width_px / factor) * factor
    if height * width > sizes.max_pixels:
        shrink = math.sqrt(height_px * width_px / sizes.max_pixels)
        height = max(factor, math.floor(height_px / shrink / factor) * factor)
        width = max(factor, math.floor(width_px / shrink / factor) * factor)
    elif height * width < sizes.min_pixels:
        grow = math.sqrt(sizes.min_pixels / (height_px * width_px))
        height = math.ceil(height_px * grow / factor) * factor
        width = math.ceil(width_px * grow / factor) * factor
    return 1, height // sizes.patch_px, width // sizes.patch_px


def num_image_tokens(grid: tuple[int, int, int], merge: int) -> int:
    time, height, width = grid
    return time * height * width // merge**2
