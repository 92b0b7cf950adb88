"""Turns image files into patches, as transformers' own processors do. Imports transformers and
Pillow only when a model with a tower is loaded."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.loading.hub_config import PROCESSOR, read_json
from inference.models.config import ModelConfig
from inference.models.errors import InvalidImageError
from inference.models.vision_config import VisionConfig
from inference.protocol.images import (
    ImageRatioError,
    VisionInput,
    image_grid,
    longest_side_px,
    most_pixels,
)
from inference.protocol.load_errors import BadSettingError
from inference.settings.neuron import VISION_MAX_PIXELS, VISION_MIN_PIXELS

KEPT_KEYS = ("image_mean", "image_std", "resample", "rescale_factor", "do_rescale", "do_normalize")
"""Keys of preprocessor_config.json that are read; ``VisionConfig`` has the sizes."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that clients may send: no other decoder is ever started."""


MOST_PIXELS_ON_CPU = 589_824
"""768 x 768: 2,304 patches of 16 pixels, 576 tokens. A tower takes seconds for one on two cores."""


def with_bounded_pixels(
    config: ModelConfig, device_type: str, environment: Mapping[str, str]
) -> ModelConfig:
    """Bounds images by HELEXA_VISION_MIN_PIXELS and HELEXA_VISION_MAX_PIXELS (0: no images), by
    default by ``MOST_PIXELS_ON_CPU`` on a CPU. Models all of whose images have one size take no
    bound but 0; those that divide images take no smallest one: they scale all to the largest, or
    enlarge none. Raises ``BadSettingError``."""
    vision = config.vision
    if vision is None:
        return config
    most = vision.max_pixels
    named = VISION_MAX_PIXELS.read(environment)
    if named is not None:
        most = min(most, named)
        if most == 0:
            return replace(config, vision=None)
    elif device_type == "cpu":
        most = min(most, MOST_PIXELS_ON_CPU)
    if vision.image_px and vision.division == "none":
        return config
    least_possible = (vision.patch_px * vision.merge) ** 2
    if most < least_possible:
        raise BadSettingError(
            f"{VISION_MAX_PIXELS.name} is {most}, and an image of one token has {least_possible} "
            "pixels: raise it, or set it to 0 for no images"
        )
    if vision.division != "none":
        return replace(config, vision=replace(vision, max_pixels=most))
    least = VISION_MIN_PIXELS.read(environment)
    if least is not None and least > most:
        raise BadSettingError(
            f"{VISION_MIN_PIXELS.name} is {least}, above the largest image's {most} pixels: lower "
            f"it, or raise {VISION_MAX_PIXELS.name}"
        )
    least = min(vision.min_pixels, most) if least is None else least
    return replace(config, vision=replace(vision, min_pixels=least, max_pixels=most))


def open_image_processor(
    directory: Path, config: ModelConfig
) -> tuple[ImageFileProcessor | None, str]:
    """Returns also why a model with a tower gets no images. Raises ``LoadError``."""
    if config.vision is None:
        return None, ""
    if find_spec("PIL") is None:
        return None, "no images: Pillow is not installed"
    return ImageFileProcessor(directory, config.vision), ""


class ImageFileProcessor:
    """Images are read as they are displayed: rotated by their Exif orientation, the first frame of
    animations, without transparency."""

    def __init__(self, directory: Path, vision: VisionConfig) -> None:
        self._vision = vision
        declared = _declared(directory, vision)
        self._processors = {
            is_low_detail: _processor(vision, declared, is_low_detail=is_low_detail)
            for is_low_detail in (False, True)
        }

    def patches(self, data: bytes, grid: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        """Raises ``InvalidImageError``."""
        image = self._decoded(data, grid)
        is_low_detail = not self._may_be(image.size, grid, is_low_detail=False)
        found = self._processors[is_low_detail](images=[image], return_tensors="np")
        found = _patches(found["pixel_values"], self._vision)
        if len(found) != math.prod(grid):
            raise InvalidImageError("its patches are not as it was counted")
        return np.ascontiguousarray(found, dtype=np.float32)

    def _decoded(self, data: bytes, grid: tuple[int, int, int]) -> Any:
        """Checks the size before decoding: no more pixels than the request was counted by."""
        from PIL import Image, ImageOps

        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                if not any(
                    self._may_be(size, grid, is_low_detail=is_low_detail)
                    for size in (image.size, image.size[::-1])
                    for is_low_detail in (False, True)
                ):
                    raise InvalidImageError("it is not of the size that it was counted by")
                return ImageOps.exif_transpose(image).convert("RGB")
        except InvalidImageError:
            raise
        # Whatever a decoder raises on a client's file: OSError, ValueError, SyntaxError,
        # struct.error, EOFError, a bomb's warning as an error, …
        except Exception as error:
            raise InvalidImageError(f"it cannot be decoded ({type(error).__name__})") from error

    def _may_be(
        self, size: tuple[int, int], grid: tuple[int, int, int], *, is_low_detail: bool
    ) -> bool:
        try:
            return image_grid(*size, self._vision, is_low_detail=is_low_detail) == grid
        except ImageRatioError:
            return False


def _processor(vision: VisionConfig, declared: dict[str, Any], *, is_low_detail: bool) -> Any:
    """transformers' own."""
    match vision.kind:
        case "gemma3":  # without pan and scan: every image as a square of one size
            from transformers.models.gemma3 import image_processing_pil_gemma3 as gemma3

            size = {"height": vision.image_px, "width": vision.image_px}
            return gemma3.Gemma3ImageProcessorPil(size=size, do_pan_and_scan=False, **declared)
        case "idefics3":
            from transformers.models.idefics3 import image_processing_pil_idefics3 as idefics3

            return idefics3.Idefics3ImageProcessorPil(
                size={"longest_edge": longest_side_px(vision)},
                max_image_size={"longest_edge": vision.image_px},
                do_image_splitting=vision.division == "tiles" and not is_low_detail,
                **declared,
            )
        case "pixtral":  # images of any shape, reduced to a longest side and never enlarged
            from transformers.models.pixtral import image_processing_pil_pixtral as pixtral

            unit_px = vision.patch_px * vision.merge
            longest_px = math.isqrt(most_pixels(vision, is_low_detail=is_low_detail))
            return pixtral.PixtralImageProcessorPil(
                size={"longest_edge": longest_px},
                patch_size={"height": unit_px, "width": unit_px},
                **declared,
            )
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as qwen2_vl

    largest = most_pixels(vision, is_low_detail=is_low_detail)
    return qwen2_vl.Qwen2VLImageProcessorPil(
        size={"shortest_edge": vision.min_pixels, "longest_edge": largest},
        patch_size=vision.patch_px,
        merge_size=vision.merge,
        temporal_patch_size=vision.temporal_patch,
        **declared,
    )


def _patches(pixels: Any, vision: VisionConfig) -> npt.NDArray[np.float32]:
    """(num_patches, patch_features), in the order of merging. ``pixels``: a processor's own. Qwen's
    are patches already; Idefics3's are the image's tiles, and the whole image as one tile: that
    alone in low detail, or where a model does not cut images."""
    if vision.kind.startswith("qwen"):
        return np.asarray(pixels)
    images, px = pixels[0], None
    if vision.kind == "idefics3":
        px = vision.image_px // vision.patch_px * vision.patch_px
    else:
        images = [images]
    return np.concatenate(
        [merged_patches(image[:, :px, :px], vision.patch_px, vision.merge) for image in images]
    )


def merged_patches(
    pixels: npt.NDArray[np.float32], patch_px: int, merge: int
) -> npt.NDArray[np.float32]:
    """(num_channels, height, width) of whole merged patches -> (num_patches, num_channels *
    patch_px**2): those that are merged stand after each other."""
    channels, height, width = pixels.shape
    rows, columns = (side // (patch_px * merge) for side in (height, width))
    parts = pixels.reshape(channels, rows, merge, patch_px, columns, merge, patch_px)
    return parts.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, channels * patch_px**2)


def _declared(directory: Path, vision: VisionConfig) -> dict[str, Any]:
    if vision.image_mean:
        return {"image_mean": list(vision.image_mean), "image_std": list(vision.image_std)}
    declared = read_json(directory / PROCESSOR)
    return {key: declared[key] for key in KEPT_KEYS if key in declared}


def vision_input(config: ModelConfig) -> VisionInput | None:
    if (vision := config.vision) is None:
        return None
    return VisionInput(
        pad_token_id=vision.image_token_id,
        patch_px=vision.patch_px,
        merge=vision.merge,
        min_pixels=vision.min_pixels,
        max_pixels=vision.max_pixels,
        image_px=vision.image_px,
        placeholder="" if vision.text is None else vision.text.placeholder,
        written="" if vision.text is None else vision.text.written,
        division=vision.division,
        part="" if vision.text is None else vision.text.part,
        row_break="" if vision.text is None else vision.text.row_break,
        parts_end="" if vision.text is None else vision.text.parts_end,
    )
