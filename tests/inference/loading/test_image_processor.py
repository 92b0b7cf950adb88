"""Image files become the patches that transformers makes of them, or are refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.loading.config.hub_config import parse_config
from inference.loading.image_processor import (
    MOST_PIXELS_ON_CPU,
    QwenImageProcessor,
    open_image_processor,
    with_bounded_pixels,
)
from inference.models.config import ModelConfig
from inference.models.errors import InvalidImageError
from inference.models.families.tower import with_pixels
from inference.protocol.images import image_grid
from tests.inference.models.families.test_vision_config import PROCESSOR, QWEN3_VL_8B

LARGEST = {"longest_edge": 96 * 1024, "shortest_edge": 4 * 1024}
SMALL = PROCESSOR | {
    "size": LARGEST,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.6, 0.7],
}


def config_of(processor: dict[str, Any]) -> ModelConfig:
    return with_pixels(parse_config(QWEN3_VL_8B, {}), processor)


def test_images_are_bounded_on_a_cpu() -> None:
    config = config_of(PROCESSOR)
    on_cpu = with_bounded_pixels(config, "cpu", {}).vision
    assert on_cpu is not None and on_cpu.max_pixels == MOST_PIXELS_ON_CPU
    assert with_bounded_pixels(config, "cuda", {}) == config


def test_the_operator_bounds_images() -> None:
    environment = {"HELEXA_VISION_MAX_PIXELS": "4096"}
    vision = with_bounded_pixels(config_of(PROCESSOR), "cuda", environment).vision
    assert vision is not None and (vision.min_pixels, vision.max_pixels) == (4096, 4096)
    text = replace(config_of(PROCESSOR), vision=None)
    assert with_bounded_pixels(text, "cuda", environment) == text
    none = {"HELEXA_VISION_MAX_PIXELS": "0"}
    assert with_bounded_pixels(config_of(PROCESSOR), "cpu", none) == text
    with pytest.raises(ValueError, match="below one token's 1024 pixels"):
        with_bounded_pixels(config_of(PROCESSOR), "cpu", {"HELEXA_VISION_MAX_PIXELS": "1000"})


def test_the_operator_sets_the_least_pixels() -> None:
    environment = {"HELEXA_VISION_MIN_PIXELS": "100352"}
    for device in ("cpu", "cuda"):
        vision = with_bounded_pixels(config_of(PROCESSOR), device, environment).vision
        assert vision is not None and vision.min_pixels == 100_352
        _, height, width = image_grid(64, 64, vision)
        assert height * width * vision.patch_px**2 >= 100_352
    crossed = environment | {"HELEXA_VISION_MAX_PIXELS": "65536"}
    with pytest.raises(ValueError, match=r"HELEXA_VISION_MIN_PIXELS \(100352\) is above .* 65536"):
        with_bounded_pixels(config_of(PROCESSOR), "cpu", crossed)


def test_a_text_model_has_no_processor(tmp_path: Path) -> None:
    assert open_image_processor(tmp_path, replace(config_of(SMALL), vision=None)) == (None, "")


class TestFiles:
    @pytest.fixture
    def pillow(self) -> Any:
        return pytest.importorskip("PIL.Image")

    @pytest.fixture
    def processor(self, pillow: Any, tmp_path: Path) -> QwenImageProcessor:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(SMALL))
        found, _ = open_image_processor(tmp_path, config_of(SMALL))
        assert found is not None
        return found

    @pytest.mark.parametrize(
        ("size", "file_format"),
        [
            ((200, 120), "PNG"),
            ((7, 300), "WEBP"),
            ((1000, 900), "PNG"),
            ((32, 32), "GIF"),
            ((90, 70), "BMP"),
        ],
        ids=str,
    )
    def test_as_transformers(
        self, pillow: Any, processor: QwenImageProcessor, size: tuple[int, int], file_format: str
    ) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        data = encoded(picture(pillow, size), file_format)
        vision = config_of(SMALL).vision
        assert vision is not None
        grid = image_grid(*size, vision)
        wanted = Qwen2VLImageProcessorPil(**SMALL)(
            images=[pillow.open(io.BytesIO(data)).convert("RGB")], return_tensors="np"
        )
        assert wanted["image_grid_thw"].tolist() == [list(grid)]
        assert np.array_equal(processor.patches(data, grid), wanted["pixel_values"])

    def test_an_image_that_lies_on_its_side(
        self, pillow: Any, processor: QwenImageProcessor
    ) -> None:
        upright = picture(pillow, (96, 160))
        exif = pillow.Exif()
        exif[0x0112] = 6  # shown turned to the right by a quarter
        lying = upright.transpose(pillow.Transpose.ROTATE_90)
        file = io.BytesIO()
        lying.save(file, "PNG", exif=exif)
        wanted = processor.patches(encoded(upright, "PNG"), (1, 10, 6))
        assert np.array_equal(processor.patches(file.getvalue(), (1, 10, 6)), wanted)

    @pytest.mark.parametrize(
        ("cut", "grid"),
        [(-200, (1, 8, 12)), (20, (1, 8, 12)), (None, (1, 10, 12)), (None, (1, 2, 200))],
        ids=["its end is missing", "only a header", "counted as larger", "counted as another"],
    )
    def test_what_cannot_be_read(
        self,
        pillow: Any,
        processor: QwenImageProcessor,
        cut: int | None,
        grid: tuple[int, int, int],
    ) -> None:
        data = encoded(picture(pillow, (192, 128)), "PNG")
        with pytest.raises(InvalidImageError):
            processor.patches(data[:cut], grid)

    def test_another_kind_of_file(self, pillow: Any, processor: QwenImageProcessor) -> None:
        with pytest.raises(InvalidImageError, match="cannot be decoded"):
            processor.patches(encoded(picture(pillow, (192, 128)), "TIFF"), (1, 8, 12))


def picture(pillow: Any, size: tuple[int, int]) -> Any:
    """Of noise, which every pixel counts in."""
    pixels = np.random.default_rng(sum(size)).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return pillow.fromarray(pixels)


def encoded(image: Any, file_format: str) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()
