"""Image files to patches, as transformers' own processor makes them. Imports transformers and
Pillow when a model with a tower is loaded, and not before."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.loading.config.hub_config import PROCESSOR, read_json
from inference.models.config import ModelConfig
from inference.models.errors import InvalidImageError
from inference.models.vision_config import VisionConfig
from inference.protocol.images import ImageRatioError, VisionInput, image_grid
from inference.settings.neuron import VISION_MAX_PIXELS, VISION_MIN_PIXELS

KEPT_KEYS = ("image_mean", "image_std", "resample", "rescale_factor", "do_rescale", "do_normalize")
"""The keys of preprocessor_config.json that are read; sizes are in ``VisionConfig``."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""What clients may send: no other decoder is ever started."""


MOST_PIXELS_ON_CPU = 589_824
"""768 x 768: 2,304 patches of 16 pixels, 576 tokens. A tower takes seconds for one on two cores."""


def with_bounded_pixels(
    config: ModelConfig, device_type: str, environment: Mapping[str, str]
) -> ModelConfig:
    """Images between HELEXA_VISION_MIN_PIXELS and HELEXA_VISION_MAX_PIXELS; without them as the
    model has it, on a CPU ``MOST_PIXELS_ON_CPU`` at most. Where the largest is 0 the model is given
    none, and is the text model that its decoder is alone. Raises ``ValueError``."""
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
    least_possible = (vision.patch_px * vision.merge) ** 2
    if most < least_possible:
        raise ValueError(f"HELEXA_VISION_MAX_PIXELS is below one token's {least_possible} pixels")
    least = VISION_MIN_PIXELS.read(environment)
    if least is not None and least > most:
        raise ValueError(f"HELEXA_VISION_MIN_PIXELS ({least}) is above the largest image's {most}")
    least = min(vision.min_pixels, most) if least is None else least
    return replace(config, vision=replace(vision, min_pixels=least, max_pixels=most))


def open_image_processor(
    directory: Path, config: ModelConfig
) -> tuple[QwenImageProcessor | None, str]:
    """The processor of a model that is given images; where it cannot be had, and there is a tower,
    in words why not. Raises ``LoadError``."""
    if config.vision is None:
        return None, ""
    if find_spec("PIL") is None:
        return None, "no images: Pillow is not installed"
    return QwenImageProcessor(directory, config.vision), ""


class QwenImageProcessor:
    """The ``ImageProcessor`` of a model's directory. Images are read as they are displayed: rotated
    by their Exif orientation, the first frame of animations, without transparency."""

    def __init__(self, directory: Path, vision: VisionConfig) -> None:
        """Raises ``LoadError``."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        declared = read_json(directory / PROCESSOR)
        kept: dict[str, Any] = {key: declared[key] for key in KEPT_KEYS if key in declared}
        self._vision = vision
        self._processor = Qwen2VLImageProcessorPil(
            size={"shortest_edge": vision.min_pixels, "longest_edge": vision.max_pixels},
            patch_size=vision.patch_px,
            merge_size=vision.merge,
            temporal_patch_size=vision.temporal_patch,
            **kept,
        )

    def patches(self, data: bytes, grid: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        """See ``ImageProcessor``. Raises ``InvalidImageError``."""
        image = self._decoded(data, grid)
        found = self._processor(images=[image], return_tensors="np")
        if tuple(found["image_grid_thw"][0].tolist()) != grid:
            raise InvalidImageError("its patches are not as it was counted")
        return np.ascontiguousarray(found["pixel_values"], dtype=np.float32)

    def _decoded(self, data: bytes, grid: tuple[int, int, int]) -> Any:
        """Looked at before its pixels are: no more of them than the request was counted by."""
        from PIL import Image, ImageOps

        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                if not self._may_be(image.size, grid) and not self._may_be(image.size[::-1], grid):
                    raise InvalidImageError("it is not of the size that it was counted by")
                return ImageOps.exif_transpose(image).convert("RGB")
        except InvalidImageError:
            raise
        # Whatever a decoder raises on a client's file: OSError, ValueError, SyntaxError,
        # struct.error, EOFError, a bomb's warning as an error, …
        except Exception as error:
            raise InvalidImageError(f"it cannot be decoded ({type(error).__name__})") from error

    def _may_be(self, size: tuple[int, int], grid: tuple[int, int, int]) -> bool:
        try:
            return image_grid(*size, self._vision) == grid
        except ImageRatioError:
            return False


def vision_input(config: ModelConfig) -> VisionInput | None:
    """What the prompts of a model that is given images are rendered and counted by."""
    if (vision := config.vision) is None:
        return None
    return VisionInput(
        pad_token_id=vision.image_token_id,
        patch_px=vision.patch_px,
        merge=vision.merge,
        min_pixels=vision.min_pixels,
        max_pixels=vision.max_pixels,
    )
