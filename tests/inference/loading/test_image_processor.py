"""Image files become the patches that transformers makes of them, or are refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
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


def bounded(
    config: ModelConfig, device: str, least: int | None = None, most: int | None = None
) -> VisionConfig | None:
    given = {"HELEXA_VISION_MIN_PIXELS": least, "HELEXA_VISION_MAX_PIXELS": most}
    environment = {name: str(pixels) for name, pixels in given.items() if pixels is not None}
    return with_bounded_pixels(config, device, environment).vision


@each_case(
    ("device", "least", "most", "expected"),
    [
        ("cpu", None, None, (None, MOST_PIXELS_ON_CPU)),
        ("cuda", None, None, (None, None)),
        ("cuda", None, 4096, (4096, 4096)),
        ("cpu", 100_352, None, (100_352, MOST_PIXELS_ON_CPU)),
    ],
)
def test_images_are_bounded_on_a_cpu_and_by_the_operator(
    device: str, least: int | None, most: int | None, expected: tuple[int | None, int | None]
) -> None:
    own = config_of(PROCESSOR).vision
    vision = bounded(config_of(PROCESSOR), device, least, most)
    assert own is not None and vision is not None
    assert vision.min_pixels == (expected[0] or own.min_pixels)
    assert vision.max_pixels == (expected[1] or own.max_pixels)
    _, height, width = image_grid(64, 64, vision)
    assert height * width * vision.patch_px**2 >= vision.min_pixels


def test_no_pixels_make_a_text_model(tmp_path: Path) -> None:
    text = replace(config_of(PROCESSOR), vision=None)
    none = {"HELEXA_VISION_MAX_PIXELS": "0"}
    assert with_bounded_pixels(config_of(PROCESSOR), "cpu", none) == text
    assert with_bounded_pixels(text, "cuda", {"HELEXA_VISION_MAX_PIXELS": "4096"}) == text
    assert open_image_processor(tmp_path, text) == (None, "")


def tiled() -> ModelConfig:
    declared = tiny_idefics3.PROCESSOR
    return with_pixels(parse_config(tiny_idefics3.idefics3().config.to_dict(), {}), declared)


@each_case(
    ("make", "least", "most", "words"),
    [
        (lambda: config_of(PROCESSOR), None, 1000, "is 1000, and an image of one token has 1024"),
        (lambda: config_of(PROCESSOR), 100_352, 65_536, r"MIN_PIXELS is 100352, above .* 65536"),
        (tiled, None, 15, "15, and an image of one token has 16"),
    ],
)
def test_bounds_that_no_image_has_are_refused(
    make: Callable[[], ModelConfig], least: int | None, most: int, words: str
) -> None:
    with pytest.raises(BadSettingError, match=words):
        bounded(make(), "cpu", least, most)


def test_images_of_one_size_are_not_bounded_and_those_in_tiles_by_their_longest_side() -> None:
    """Each in tiles is scaled to it, so that no smallest size changes anything."""
    config = parse_config(tiny_gemma3.gemma3().config.to_dict(), {})
    config = with_pixels(config, tiny_gemma3.PROCESSOR)
    for device in ("cpu", "cuda"):
        assert bounded(config, device, 100, 100) == config.vision
    assert bounded(config, "cpu", most=0) is None
    for most, columns in ((784, 3), (200, 2)):
        vision = bounded(tiled(), "cpu", 1000, most)
        assert vision is not None and (vision.min_pixels, vision.max_pixels) == (0, most)
        assert image_layout(100, 100, vision).columns == columns


PIXTRAL_SIZE = {"size": {"longest_edge": 600}, "patch_size": {"height": 4, "width": 4}}
WHOLE = {"do_image_splitting": False}
PEERS = [
    ("Gemma3", tiny_gemma3.PROCESSOR, tiny_gemma3.gemma3, {}, {1: (0, 2), 2: (2, 0), 4: (0, 4)}),
    ("Idefics3", tiny_idefics3.PROCESSOR, tiny_idefics3.idefics3, WHOLE, {-1: (10, 10)}),
    ("Idefics3", tiny_idefics3.PROCESSOR | WHOLE, tiny_idefics3.idefics3, {}, {-1: (10, 10)}),
    (
        "Pixtral",
        tiny_pixtral.PROCESSOR | PIXTRAL_SIZE,
        tiny_pixtral.mistral3,
        {"size": {"longest_edge": 512}},
        {1: (0, 2), -1: (-2, -2)},
    ),
]
"""What differs for transformers in low detail; (top, left) of some patches of two by two pixels."""


@each_case(
    ("declared", "size", "file_format", "is_low_detail"),
    [
        (SMALL, (200, 120), "PNG", False),
        (SMALL, (7, 300), "WEBP", False),
        (SMALL, (1000, 900), "PNG", False),
        (SMALL, (32, 32), "GIF", False),
        (SMALL, (90, 70), "BMP", False),
        (PROCESSOR, (800, 600), "PNG", True),
    ],
)
def test_as_transformers(
    tmp_path: Path,
    declared: dict[str, Any],
    size: tuple[int, int],
    file_format: str,
    is_low_detail: bool,
) -> None:
    """Larger images are reduced in low detail as transformers does that is given that bound."""
    processor, vision = opened(declared, QWEN3_VL_8B, tmp_path)
    data = encoded(noise_image(Image, size), file_format)
    grid = image_grid(*size, vision, is_low_detail=is_low_detail)
    bounds = {"shortest_edge": vision.min_pixels, "longest_edge": LOW_DETAIL_PIXELS}
    low = {"size": bounds} if is_low_detail else {}
    wanted = theirs("qwen2_vl", "Qwen2VL", declared | low, data)
    assert wanted["image_grid_thw"].tolist() == [list(grid)]
    assert np.array_equal(processor.patches(data, grid), wanted["pixel_values"])
    assert not is_low_detail or grid != image_grid(*size, vision)


@each_case("is_low_detail", [False, True])
@each_case("size", [(200, 120), (7, 300), (12, 12), (1, 1), (600, 700)], ids=str)
@each_case(("name", "declared", "model", "low", "places"), PEERS)
def test_patches_as_transformers(
    tmp_path: Path,
    name: str,
    declared: dict[str, Any],
    model: Callable[[], PreTrainedModel],
    low: dict[str, Any],
    places: dict[int, tuple[int, int]],
    size: tuple[int, int],
    is_low_detail: bool,
) -> None:
    """Tile after tile; the patches that a tower averages to one row follow each other."""
    processor, vision = opened(declared, model().config.to_dict(), tmp_path)
    data = encoded(noise_image(Image, size), "PNG")
    grid = image_grid(*size, vision, is_low_detail=is_low_detail)
    wanted = theirs(name.lower(), name, declared | (low if is_low_detail else {}), data)
    (pixels,) = wanted["pixel_values"]
    tiles = pixels.reshape(-1, *pixels.shape[-3:])
    assert (len(tiles), tiles.shape[2] // 2, tiles.shape[3] // 2) == grid
    found = processor.patches(data, grid).reshape(len(tiles), grid[1] * grid[2], 12)
    for patches, tile in zip(found, tiles, strict=True):
        for index, (y, x) in ({0: (0, 0)} | places).items():
            patch = tile[:, y:, x:][:, :2, :2]
            assert np.array_equal(patches[index].reshape(3, 2, 2), patch), index


def test_an_image_that_lies_on_its_side(tmp_path: Path) -> None:
    processor, _ = opened(SMALL, QWEN3_VL_8B, tmp_path)
    upright, exif, file = noise_image(Image, (96, 160)), Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # shown turned to the right by a quarter
    upright.transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
    wanted = processor.patches(encoded(upright, "PNG"), (1, 10, 6))
    assert np.array_equal(processor.patches(file.getvalue(), (1, 10, 6)), wanted)


@each_case(
    ("file_format", "cut", "grid"),
    [
        pytest.param("PNG", -200, (1, 8, 12), id="its end is missing"),
        pytest.param("PNG", 20, (1, 8, 12), id="only a header"),
        pytest.param("PNG", None, (1, 10, 12), id="counted as larger"),
        pytest.param("TIFF", None, (1, 8, 12), id="another kind of file"),
    ],
)
def test_what_cannot_be_read(
    tmp_path: Path, file_format: str, cut: int | None, grid: tuple[int, int, int]
) -> None:
    processor, _ = opened(SMALL, QWEN3_VL_8B, tmp_path)
    data = encoded(noise_image(Image, (192, 128)), file_format)
    with pytest.raises(InvalidImageError):
        processor.patches(data[:cut], grid)


def opened(
    declared: dict[str, Any], config: dict[str, Any], folder: Path
) -> tuple[ImageFileProcessor, VisionConfig]:
    """``declared``: preprocessor_config.json."""
    (folder / "preprocessor_config.json").write_text(json.dumps(declared))
    parsed = with_pixels(parse_config(config, {}), declared)
    processor, _ = open_image_processor(folder, parsed)
    assert processor is not None and parsed.vision is not None
    return processor, parsed.vision


def theirs(module: str, name: str, declared: dict[str, Any], data: bytes) -> Any:
    found = import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    image = Image.open(io.BytesIO(data)).convert("RGB")
    processor = getattr(found, f"{name}ImageProcessorPil")(**declared)
    return processor(images=[image], return_tensors="np")


def noise_image(pillow: Any, size: tuple[int, int]) -> Any:
    """Makes an image of noise, in which every pixel counts."""
    pixels = np.random.default_rng(sum(size)).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return pillow.fromarray(pixels)


def encoded(image: Any, file_format: str) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()
