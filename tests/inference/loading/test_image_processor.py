"""Image files become the patches that transformers makes of them, or are refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from inference.loading.config.hub_config import parse_config
from inference.loading.image_processor import (
    MOST_PIXELS_ON_CPU,
    ImageFileProcessor,
    open_image_processor,
    with_bounded_pixels,
)
from inference.models.config import ModelConfig
from inference.models.errors import InvalidImageError
from inference.models.families.tower import with_pixels
from inference.models.vision_config import VisionConfig
from inference.protocol.images import LOW_DETAIL_PIXELS, image_grid, image_layout
from inference.protocol.load_errors import BadSettingError
from tests.cases import each_case
from tests.inference.models.vision import tiny_gemma3, tiny_idefics3, tiny_pixtral
from tests.inference.models.vision.test_vision_config import PROCESSOR, QWEN3_VL_8B

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
    with pytest.raises(BadSettingError, match="is 1000, and an image of one token has 1024 pixels"):
        with_bounded_pixels(config_of(PROCESSOR), "cpu", {"HELEXA_VISION_MAX_PIXELS": "1000"})


def test_images_of_one_size_are_not_bounded() -> None:
    config = parse_config(tiny_gemma3.gemma3().config.to_dict(), {})
    config = with_pixels(config, tiny_gemma3.PROCESSOR)
    bounds = {"HELEXA_VISION_MIN_PIXELS": "100", "HELEXA_VISION_MAX_PIXELS": "100"}
    for device in ("cpu", "cuda"):
        assert with_bounded_pixels(config, device, bounds) == config
    none = with_bounded_pixels(config, "cpu", {"HELEXA_VISION_MAX_PIXELS": "0"})
    assert none == replace(config, vision=None)


def test_the_longest_side_of_images_in_tiles_is_bounded() -> None:
    """Each is scaled to it, so that no smallest size changes anything."""
    declared = tiny_idefics3.PROCESSOR
    config = with_pixels(parse_config(tiny_idefics3.idefics3().config.to_dict(), {}), declared)
    environment = {"HELEXA_VISION_MIN_PIXELS": "1000", "HELEXA_VISION_MAX_PIXELS": "784"}
    vision = with_bounded_pixels(config, "cpu", environment).vision
    assert vision is not None and config.vision is not None
    assert (vision.min_pixels, vision.max_pixels) == (0, 784)
    assert image_layout(100, 100, config.vision).columns == 3
    assert image_layout(100, 100, vision).columns == 3
    small = {"HELEXA_VISION_MAX_PIXELS": "200"}
    vision = with_bounded_pixels(config, "cuda", small).vision
    assert vision is not None and image_layout(100, 100, vision).columns == 2
    with pytest.raises(BadSettingError, match="15, and an image of one token has 16"):
        with_bounded_pixels(config, "cpu", {"HELEXA_VISION_MAX_PIXELS": "15"})


def test_the_operator_sets_the_least_pixels() -> None:
    environment = {"HELEXA_VISION_MIN_PIXELS": "100352"}
    for device in ("cpu", "cuda"):
        vision = with_bounded_pixels(config_of(PROCESSOR), device, environment).vision
        assert vision is not None and vision.min_pixels == 100_352
        _, height, width = image_grid(64, 64, vision)
        assert height * width * vision.patch_px**2 >= 100_352
    crossed = environment | {"HELEXA_VISION_MAX_PIXELS": "65536"}
    with pytest.raises(BadSettingError, match=r"MIN_PIXELS is 100352, above .* 65536"):
        with_bounded_pixels(config_of(PROCESSOR), "cpu", crossed)


def test_a_text_model_has_no_processor(tmp_path: Path) -> None:
    assert open_image_processor(tmp_path, replace(config_of(SMALL), vision=None)) == (None, "")


class TestFiles:
    @pytest.fixture
    def pillow(self) -> Any:
        return pytest.importorskip("PIL.Image")

    @pytest.fixture
    def processor(self, pillow: Any, tmp_path: Path) -> ImageFileProcessor:
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
        self, pillow: Any, processor: ImageFileProcessor, size: tuple[int, int], file_format: str
    ) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        data = encoded(noise_image(pillow, size), file_format)
        vision = config_of(SMALL).vision
        assert vision is not None
        grid = image_grid(*size, vision)
        wanted = Qwen2VLImageProcessorPil(**SMALL)(
            images=[pillow.open(io.BytesIO(data)).convert("RGB")], return_tensors="np"
        )
        assert wanted["image_grid_thw"].tolist() == [list(grid)]
        assert np.array_equal(processor.patches(data, grid), wanted["pixel_values"])

    @each_case("size", [(200, 120), (7, 300), (12, 12), (1000, 3)], ids=str)
    @each_case("is_low_detail", [False, True])
    def test_squares_as_transformers(
        self, pillow: Any, tmp_path: Path, size: tuple[int, int], is_low_detail: bool
    ) -> None:
        """Gemma 3's images: one size, also in low detail; the patches that its tower averages to
        one row follow each other."""
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

        declared = tiny_gemma3.PROCESSOR
        processor, vision = opened(declared, tiny_gemma3.gemma3(), tmp_path)
        data = encoded(noise_image(pillow, size), "PNG")
        grid = image_grid(*size, vision, is_low_detail=is_low_detail)
        (wanted,) = Gemma3ImageProcessorPil(**declared)(
            images=[pillow.open(io.BytesIO(data)).convert("RGB")], return_tensors="np"
        )["pixel_values"]
        found = processor.patches(data, grid)
        assert grid == (1, 6, 6) and found.shape == (36, 12)
        assert np.array_equal(found[0].reshape(3, 2, 2), wanted[:, :2, :2])
        assert np.array_equal(found[1].reshape(3, 2, 2), wanted[:, :2, 2:4])
        assert np.array_equal(found[2].reshape(3, 2, 2), wanted[:, 2:4, :2])
        assert np.array_equal(found[4].reshape(3, 2, 2), wanted[:, :2, 4:6])
        assert np.array_equal(found[-1].reshape(3, 2, 2), wanted[:, -2:, -2:])

    @each_case("size", [(200, 120), (7, 300), (12, 12), (33, 34)], ids=str)
    @each_case("is_low_detail", [False, True])
    @each_case("is_cut", [False, True])
    def test_tiles_as_transformers(
        self,
        pillow: Any,
        tmp_path: Path,
        size: tuple[int, int],
        is_low_detail: bool,
        is_cut: bool,
    ) -> None:
        """Idefics3's: tile after tile, and the whole image last; in low detail that alone."""
        from transformers.models.idefics3.image_processing_pil_idefics3 import (
            Idefics3ImageProcessorPil,
        )

        declared = tiny_idefics3.PROCESSOR | {"do_image_splitting": is_cut}
        processor, vision = opened(declared, tiny_idefics3.idefics3(), tmp_path)
        data = encoded(noise_image(pillow, size), "PNG")
        grid = image_grid(*size, vision, is_low_detail=is_low_detail)
        found = processor.patches(data, grid)
        low = {"do_image_splitting": is_cut and not is_low_detail}
        (tiles,) = Idefics3ImageProcessorPil(**declared | low)(
            images=[pillow.open(io.BytesIO(data)).convert("RGB")], return_tensors="np"
        )["pixel_values"]
        assert len(tiles) == grid[0]
        by_tile = found.reshape(len(tiles), -1, 12)
        for patches, tile in zip(by_tile, tiles, strict=True):
            assert np.array_equal(patches[0].reshape(3, 2, 2), tile[:, :2, :2])
            assert np.array_equal(patches[-1].reshape(3, 2, 2), tile[:, 10:12, 10:12])

    @each_case("size", [(20, 12), (7, 300), (1, 1), (600, 700)], ids=str)
    @each_case("is_low_detail", [False, True])
    def test_rows_as_transformers(
        self, pillow: Any, tmp_path: Path, size: tuple[int, int], is_low_detail: bool
    ) -> None:
        """Pixtral's: reduced to a longest side, which is smaller in low detail."""
        from transformers.models.pixtral.image_processing_pil_pixtral import (
            PixtralImageProcessorPil,
        )

        declared = tiny_pixtral.PROCESSOR | {"size": {"longest_edge": 600}}
        processor, vision = opened(declared, tiny_pixtral.mistral3(), tmp_path)
        data = encoded(noise_image(pillow, size), "PNG")
        grid = image_grid(*size, vision, is_low_detail=is_low_detail)
        found = processor.patches(data, grid)
        changes = {"patch_size": {"height": 4, "width": 4}}
        if is_low_detail:
            changes["size"] = {"longest_edge": 512}
        (pixels,) = PixtralImageProcessorPil(**declared | changes)(
            images=[pillow.open(io.BytesIO(data)).convert("RGB")], return_tensors="np"
        )["pixel_values"]
        assert pixels.shape == (3, grid[1] * 2, grid[2] * 2)
        assert np.array_equal(found[0].reshape(3, 2, 2), pixels[:, :2, :2])
        assert np.array_equal(found[1].reshape(3, 2, 2), pixels[:, :2, 2:4])
        assert np.array_equal(found[-1].reshape(3, 2, 2), pixels[:, -2:, -2:])

    def test_low_detail(self, pillow: Any, tmp_path: Path) -> None:
        """Larger images are reduced as transformers does that is given that bound."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        processor, _ = open_image_processor(tmp_path, config_of(PROCESSOR))
        vision = config_of(PROCESSOR).vision
        assert processor is not None and vision is not None
        data = encoded(noise_image(pillow, (800, 600)), "PNG")
        grid = image_grid(800, 600, vision, is_low_detail=True)
        assert grid != image_grid(800, 600, vision)
        bounds = {"shortest_edge": vision.min_pixels, "longest_edge": LOW_DETAIL_PIXELS}
        wanted = Qwen2VLImageProcessorPil(**(PROCESSOR | {"size": bounds}))(
            images=[pillow.open(io.BytesIO(data))], return_tensors="np"
        )
        assert wanted["image_grid_thw"].tolist() == [list(grid)]
        assert np.array_equal(processor.patches(data, grid), wanted["pixel_values"])

    def test_an_image_that_lies_on_its_side(
        self, pillow: Any, processor: ImageFileProcessor
    ) -> None:
        upright = noise_image(pillow, (96, 160))
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
        processor: ImageFileProcessor,
        cut: int | None,
        grid: tuple[int, int, int],
    ) -> None:
        data = encoded(noise_image(pillow, (192, 128)), "PNG")
        with pytest.raises(InvalidImageError):
            processor.patches(data[:cut], grid)

    def test_another_kind_of_file(self, pillow: Any, processor: ImageFileProcessor) -> None:
        with pytest.raises(InvalidImageError, match="cannot be decoded"):
            processor.patches(encoded(noise_image(pillow, (192, 128)), "TIFF"), (1, 8, 12))


def opened(
    declared: dict[str, Any], model: PreTrainedModel, folder: Path
) -> tuple[ImageFileProcessor, VisionConfig]:
    """``declared``: preprocessor_config.json."""
    (folder / "preprocessor_config.json").write_text(json.dumps(declared))
    config = with_pixels(parse_config(model.config.to_dict(), {}), declared)
    processor, _ = open_image_processor(folder, config)
    assert processor is not None and config.vision is not None
    return processor, config.vision


def noise_image(pillow: Any, size: tuple[int, int]) -> Any:
    """Makes an image of noise, in which every pixel counts."""
    pixels = np.random.default_rng(sum(size)).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return pillow.fromarray(pixels)


def encoded(image: Any, file_format: str) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()
