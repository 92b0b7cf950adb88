"""Image files become the patches that transformers makes of them, or are refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference.loading.hub_config import parse_config
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
SMALL = PROCESSOR | {"size": LARGEST, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}


def parsed(config: dict[str, Any], processor: dict[str, Any]) -> ModelConfig:
    return with_pixels(parse_config(config, {}), processor)


def bounded(
    config: ModelConfig, device: str, least: int | None = None, most: int | None = None
) -> VisionConfig | None:
    given = {"MIN": least, "MAX": most}
    environment = {f"HELEXA_VISION_{k}_PIXELS": str(n) for k, n in given.items() if n is not None}
    return with_bounded_pixels(config, device, environment).vision


def test_images_are_bounded_on_a_cpu_and_by_the_operator(tmp_path: Path) -> None:
    """Those of one size are not, and those in tiles are by their longest side: each is scaled to
    it, so that no smallest size changes anything."""
    qwen = parsed(QWEN3_VL_8B, PROCESSOR)
    tiled = parsed(tiny_idefics3.idefics3().config.to_dict(), tiny_idefics3.PROCESSOR)
    own = qwen.vision
    assert own is not None
    for device, given, least, most in (
        ("cpu", (None, None), own.min_pixels, MOST_PIXELS_ON_CPU),
        ("cuda", (None, None), own.min_pixels, own.max_pixels),
        ("cuda", (None, 4096), 4096, 4096),
        ("cpu", (100_352, None), 100_352, MOST_PIXELS_ON_CPU),
    ):
        vision = bounded(qwen, device, *given)
        assert vision is not None and (vision.min_pixels, vision.max_pixels) == (least, most)
        _, height, width = image_grid(64, 64, vision)
        assert height * width * vision.patch_px**2 >= vision.min_pixels
    text = replace(qwen, vision=None)
    assert with_bounded_pixels(qwen, "cpu", {"HELEXA_VISION_MAX_PIXELS": "0"}) == text
    assert with_bounded_pixels(text, "cuda", {"HELEXA_VISION_MAX_PIXELS": "4096"}) == text
    assert open_image_processor(tmp_path, text) == (None, "")
    gemma = parsed(tiny_gemma3.gemma3().config.to_dict(), tiny_gemma3.PROCESSOR)
    for device in ("cpu", "cuda"):
        assert bounded(gemma, device, 100, 100) == gemma.vision
    assert bounded(gemma, "cpu", most=0) is None
    for most, columns in ((784, 3), (200, 2)):
        vision = bounded(tiled, "cpu", 1000, most)
        assert vision is not None and (vision.min_pixels, vision.max_pixels) == (0, most)
        assert image_layout(100, 100, vision).columns == columns
    for config, least, most, words in (
        (qwen, None, 1000, "is 1000, and an image of one token has 1024"),
        (qwen, 100_352, 65_536, r"MIN_PIXELS is 100352, above .* 65536"),
        (tiled, None, 15, "15, and an image of one token has 16"),
    ):
        with pytest.raises(BadSettingError, match=words):
            bounded(config, "cpu", least, most)


PIXTRAL_SIZE = {"size": {"longest_edge": 600}, "patch_size": {"height": 4, "width": 4}}
PIXTRAL, LOW_SIZE = tiny_pixtral.PROCESSOR | PIXTRAL_SIZE, {"size": {"longest_edge": 512}}
WHOLE = {"do_image_splitting": False}
PEERS = [
    ("Gemma3", tiny_gemma3.PROCESSOR, tiny_gemma3.gemma3, {}, {1: (0, 2), 2: (2, 0), 4: (0, 4)}),
    ("Idefics3", tiny_idefics3.PROCESSOR, tiny_idefics3.idefics3, WHOLE, {-1: (10, 10)}),
    ("Idefics3", tiny_idefics3.PROCESSOR | WHOLE, tiny_idefics3.idefics3, {}, {-1: (10, 10)}),
    ("Pixtral", PIXTRAL, tiny_pixtral.mistral3, LOW_SIZE, {1: (0, 2), -1: (-2, -2)}),
]
"""What differs for transformers in low detail; (top, left) of some patches of two by two pixels."""


@each_case(
    ("declared", "size", "file_format"),
    [
        (SMALL, (200, 120), "GIF"),
        (SMALL, (7, 300), "WEBP"),
        (SMALL, (1000, 900), "BMP"),
        (PROCESSOR, (800, 600), "PNG"),
    ],
)
def test_as_transformers(
    tmp_path: Path, declared: dict[str, Any], size: tuple[int, int], file_format: str
) -> None:
    """Larger images are reduced in low detail as transformers does that is given that bound."""
    processor, vision = opened(declared, QWEN3_VL_8B, tmp_path)
    data, is_low_detail = encoded(noise_image(Image, size), file_format), declared is PROCESSOR
    grid = image_grid(*size, vision, is_low_detail=is_low_detail)
    bounds = {"shortest_edge": vision.min_pixels, "longest_edge": LOW_DETAIL_PIXELS}
    low = {"size": bounds} if is_low_detail else {}
    wanted = theirs("qwen2_vl", "Qwen2VL", declared | low, data)
    assert wanted["image_grid_thw"].tolist() == [list(grid)]
    assert np.array_equal(processor.patches(data, grid), wanted["pixel_values"])
    assert not is_low_detail or grid != image_grid(*size, vision)


@each_case("is_low_detail", [False, True])
@each_case("size", [(200, 120), (7, 300), (12, 12), (1, 1), (600, 700)], ids=str)
@each_case("peer", PEERS)
def test_patches_as_transformers(
    tmp_path: Path, peer: tuple[Any, ...], size: tuple[int, int], is_low_detail: bool
) -> None:
    """Tile after tile; the patches that a tower averages to one row follow each other."""
    name, declared, model, low, places = peer
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


def test_an_image_that_lies_on_its_side_and_what_cannot_be_read(tmp_path: Path) -> None:
    processor, _ = opened(SMALL, QWEN3_VL_8B, tmp_path)
    upright, exif, file = noise_image(Image, (96, 160)), Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # shown turned to the right by a quarter
    upright.transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
    wanted = processor.patches(encoded(upright, "PNG"), (1, 10, 6))
    assert np.array_equal(processor.patches(file.getvalue(), (1, 10, 6)), wanted)
    image = noise_image(Image, (192, 128))
    for file_format, cut, grid in (
        ("PNG", -200, (1, 8, 12)),  # its end is missing
        ("PNG", 20, (1, 8, 12)),  # only a header
        ("PNG", None, (1, 10, 12)),  # counted as larger
        ("TIFF", None, (1, 8, 12)),  # another kind of file
    ):
        with pytest.raises(InvalidImageError):
            processor.patches(encoded(image, file_format)[:cut], grid)


def opened(
    declared: dict[str, Any], config: dict[str, Any], folder: Path
) -> tuple[ImageFileProcessor, VisionConfig]:
    """``declared``: preprocessor_config.json."""
    (folder / "preprocessor_config.json").write_text(json.dumps(declared))
    own = parsed(config, declared)
    processor, _ = open_image_processor(folder, own)
    assert processor is not None and own.vision is not None
    return processor, own.vision


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
