"""The sizes of images that preprocessor_config.json declares, beside the tower of config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.hub_config import Json
from inference.models.vision_config import VisionConfig
from inference.protocol.images import LONGEST_SIDE_PX, ImageDivision
from inference.protocol.load_errors import BadFileError


def with_pixels(config: ModelConfig, processor: Json | None) -> ModelConfig:
    """``processor``: preprocessor_config.json, which limits the size of images; without it the
    checkpoint is read as a text model. Raises ``BadFileError``."""
    if config.vision is None or processor is None:
        return replace(config, vision=None)
    if not processor.get("do_resize", True):
        raise BadFileError("preprocessor_config.json: do_resize is false, which is not supported")
    if config.vision.kind == "idefics3":
        return replace(config, vision=_with_tiles(config.vision, processor))
    if config.vision.kind == "pixtral":
        return replace(config, vision=_with_rows(config.vision, processor))
    if config.vision.image_px:
        _check_square(config.vision.image_px, processor)
        return config
    size: dict[str, Any] = dict(processor.get("size") or {})
    least = processor.get("min_pixels") or size.get("shortest_edge")
    most = processor.get("max_pixels") or size.get("longest_edge")
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise BadFileError(f"preprocessor_config.json: images of {least!r} to {most!r} pixels")
    for key, known in (
        ("patch_size", config.vision.patch_px),
        ("merge_size", config.vision.merge),
        ("temporal_patch_size", config.vision.temporal_patch),
    ):
        if (found := processor.get(key, known)) != known:
            raise BadFileError(
                f"preprocessor_config.json: {key} is {found}, the tower's is {known}"
            )
    vision = replace(config.vision, min_pixels=least, max_pixels=most)
    return replace(config, vision=vision)


def _check_square(image_px: int, processor: Json) -> None:
    """Raises ``BadFileError`` where the processor makes images that are not the tower's."""
    size, wanted = processor.get("size"), {"height": image_px, "width": image_px}
    if size != wanted:
        raise BadFileError(f"preprocessor_config.json: size is {size!r}, the tower's is {wanted}")
    if processor.get("do_pan_and_scan"):
        raise BadFileError("preprocessor_config.json: do_pan_and_scan is not supported")


def _with_rows(vision: VisionConfig, processor: Json) -> VisionConfig:
    """Raises ``BadFileError``."""
    longest = dict(processor.get("size") or {}).get("longest_edge")
    if not isinstance(longest, int) or not 0 < longest <= LONGEST_SIDE_PX:
        raise BadFileError(
            f"preprocessor_config.json: size is {longest!r}, not 1 to {LONGEST_SIDE_PX} pixels"
        )
    patch = processor.get("patch_size", vision.patch_px)
    sides = set(patch.values()) if isinstance(patch, dict) else {patch}
    if not sides <= {vision.patch_px, vision.patch_px * vision.merge}:
        raise BadFileError(
            f"preprocessor_config.json: patch_size is {patch}, the tower's is {vision.patch_px}"
        )
    return replace(vision, max_pixels=longest**2)


def _with_tiles(vision: VisionConfig, processor: Json) -> VisionConfig:
    """Images are cut into tiles unless ``do_image_splitting`` is false. Raises ``BadFileError``."""
    longest, tile = (
        dict(processor.get(key) or {}).get("longest_edge") for key in ("size", "max_image_size")
    )
    if tile != vision.image_px:
        raise BadFileError(
            f"preprocessor_config.json: max_image_size is {tile!r}, the tower's is "
            f"{vision.image_px}"
        )
    if not isinstance(longest, int) or not 0 < longest <= LONGEST_SIDE_PX:
        raise BadFileError(
            f"preprocessor_config.json: size is {longest!r}, not 1 to {LONGEST_SIDE_PX} pixels"
        )
    division: ImageDivision = "tiles" if processor.get("do_image_splitting", True) else "none"
    return replace(vision, division=division, max_pixels=longest**2)
