"""The vision towers of Qwen3-VL and Qwen3.5, and of Qwen2.5-VL, most of whose blocks see a window
of the image: how config.json describes them, and their tensors. All towers' descriptions share the
checks here, and the sizes of images in preprocessor_config.json."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    rope_parameters,
)
from inference.models.families.roles import TensorRole
from inference.models.vision_config import VisionConfig
from inference.protocol.images import LONGEST_SIDE_PX, ImageDivision
from inference.protocol.load_errors import BadFileError

TOWER = "model.visual."
VISION = "vision"
"""The purpose of the tower's tensors, in words."""
ACTIVATION = "gelu_pytorch_tanh"
REQUIRED = frozenset(
    {
        "depth",
        "hidden_size",
        "intermediate_size",
        "num_heads",
        "num_position_embeddings",
        "out_hidden_size",
        "patch_size",
        "spatial_merge_size",
        "temporal_patch_size",
    }
)
WINDOWED_REQUIRED = frozenset(
    {
        "depth",
        "fullatt_block_indexes",
        "hidden_size",
        "intermediate_size",
        "num_heads",
        "out_hidden_size",
        "patch_size",
        "spatial_merge_size",
        "window_size",
    }
)
ROPE_THETA = 10000.0
NORM_EPS = 1e-6
AXES = 3
"""The axes of a position: time, height and width."""


def read_vision(config: Json, text: Json) -> VisionConfig | None:
    """The tower that config.json describes, without its processor's image sizes. ``text``: the
    decoder's part. ``None`` where there is none, or none that is whole: such a checkpoint is read
    as a text model. Raises ``BadFileError`` for one that would be computed wrongly."""
    tower = _whole_tower(config, text, REQUIRED)
    if tower is None:
        return None
    if not rope_parameters(text).get("mrope_interleaved", True):
        raise BadFileError("image rotary frequencies in blocks are not supported with this tower")
    activation = tower.get("hidden_act", ACTIVATION)
    if activation != ACTIVATION:
        raise BadFileError(f"vision_config: hidden_act {activation!r} is not {ACTIVATION}")
    deepstack = tower.get("deepstack_visual_indexes") or ()
    vision = VisionConfig(
        **_common_fields(config, tower, text),
        temporal_patch=positive_integer(tower, "temporal_patch_size"),
        num_channels=int(tower.get("in_channels", 3)),
        num_position_embeddings=positive_integer(tower, "num_position_embeddings"),
        deepstack_layers=tuple(int(index) for index in deepstack),
    )
    check_vision(vision, positive_integer(text, "hidden_size"))
    return vision


def read_windowed_vision(config: Json, text: Json) -> VisionConfig | None:
    """Reads a tower whose blocks see windows, as ``read_vision`` reads the others."""
    tower = _whole_tower(config, text, WINDOWED_REQUIRED)
    if tower is None:
        return None
    check_activation(tower, "silu")
    vision = VisionConfig(
        **_common_fields(config, tower, text),
        kind="qwen2_5_vl",
        temporal_patch=int(tower.get("temporal_patch_size", 2)),
        num_channels=int(tower.get("in_channels") or tower.get("in_chans") or 3),
        window_px=positive_integer(tower, "window_size"),
        full_attention_layers=tuple(int(index) for index in tower["fullatt_block_indexes"]),
        is_mrope_interleaved=False,
    )
    check_windowed_vision(vision, positive_integer(text, "hidden_size"))
    return vision


def _whole_tower(config: Json, text: Json, required: frozenset[str]) -> Json | None:
    """``None`` where config.json lacks a part of the description."""
    tower = config.get("vision_config")
    if not isinstance(tower, dict) or not tower.keys() >= required:
        return None
    if not isinstance(config.get("image_token_id"), int):
        return None
    return tower if "mrope_section" in rope_parameters(text) else None


def _common_fields(config: Json, tower: Json, text: Json) -> dict[str, Any]:
    return {
        "image_token_id": config["image_token_id"],
        "patch_px": positive_integer(tower, "patch_size"),
        "merge": positive_integer(tower, "spatial_merge_size"),
        "min_pixels": 0,
        "max_pixels": 0,
        "depth": positive_integer(tower, "depth"),
        "hidden_size": positive_integer(tower, "hidden_size"),
        "intermediate_size": positive_integer(tower, "intermediate_size"),
        "num_heads": positive_integer(tower, "num_heads"),
        "out_hidden_size": positive_integer(tower, "out_hidden_size"),
        "rope_theta": float((tower.get("rope_parameters") or {}).get("rope_theta", ROPE_THETA)),
        "mrope_section": mrope_section(rope_parameters(text)),
    }


def encoder_fields(tower: Json, text: Json) -> dict[str, Any]:
    """The sizes that towers other than Qwen's spell alike."""
    return {
        "depth": positive_integer(tower, "num_hidden_layers"),
        "hidden_size": positive_integer(tower, "hidden_size"),
        "intermediate_size": positive_integer(tower, "intermediate_size"),
        "num_heads": positive_integer(tower, "num_attention_heads"),
        "out_hidden_size": positive_integer(text, "hidden_size"),
    }


def mrope_section(rope: Json) -> tuple[int, int, int]:
    """Raises ``BadFileError``."""
    section = rope["mrope_section"]
    if not isinstance(section, list | tuple) or len(section) != AXES:
        raise BadFileError(f"mrope_section is {section!r}, not three numbers")
    time, height, width = (int(size) for size in section)
    return time, height, width


def check_vision(vision: VisionConfig, text_hidden_size: int) -> None:
    """Raises ``BadFileError`` for a tower that cannot be computed or does not fit its decoder."""
    side = math.isqrt(vision.num_position_embeddings)
    if side**2 != vision.num_position_embeddings:
        raise BadFileError(f"{vision.num_position_embeddings} position embeddings are no square")
    check_row_size(vision, text_hidden_size)
    check_rotated_heads(vision)


def check_row_size(vision: VisionConfig, text_hidden_size: int) -> None:
    """Raises ``BadFileError`` where the decoder cannot take the tower's rows."""
    if vision.out_hidden_size != text_hidden_size:
        raise BadFileError(
            f"the tower's rows have {vision.out_hidden_size} numbers, and the decoder's "
            f"{text_hidden_size}"
        )


def check_equal_heads(vision: VisionConfig) -> None:
    """Raises ``BadFileError`` where the features cannot be divided among the heads."""
    if vision.hidden_size % vision.num_heads:
        raise BadFileError(
            f"{vision.hidden_size} features of the tower are not {vision.num_heads} equal heads"
        )


def check_rotated_heads(vision: VisionConfig) -> None:
    """Raises ``BadFileError`` where a head is not of pairs for height and for width."""
    if vision.hidden_size % (4 * vision.num_heads):
        raise BadFileError("the tower's heads cannot be rotated by height and width")


def tower_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """Dense whatever the decoder's become: a small part of the whole, and it is run seldom."""
    size, patch = vision.hidden_size, vision.patch_px
    kernel = size, vision.num_channels, vision.temporal_patch, patch, patch
    yield tower_tensor("patch_embed.proj.weight", *kernel)
    yield tower_tensor("patch_embed.proj.bias", size)
    yield tower_tensor("pos_embed.weight", vision.num_position_embeddings, size)
    yield from block_tensors(vision)
    yield from _merger("merger.", vision, size)
    for index in range(len(vision.deepstack_layers)):
        yield from _merger(f"deepstack_merger_list.{index}.", vision, vision.merged_features)


def block_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """Blocks with layer norms, and MLPs without gates."""
    size, inner = vision.hidden_size, vision.intermediate_size
    for index in range(vision.depth):
        prefix = f"blocks.{index}."
        yield from norm_tensors(f"{prefix}norm1", size)
        yield from norm_tensors(f"{prefix}norm2", size)
        yield from linear_tensors(f"{prefix}attn.qkv", 3 * size, size)
        yield from linear_tensors(f"{prefix}attn.proj", size, size)
        yield from linear_tensors(f"{prefix}mlp.linear_fc1", inner, size)
        yield from linear_tensors(f"{prefix}mlp.linear_fc2", size, inner)


def _merger(prefix: str, vision: VisionConfig, norm_size: int) -> Iterator[TensorRole]:
    merged = vision.merged_features
    yield from norm_tensors(f"{prefix}norm", norm_size)
    yield from linear_tensors(f"{prefix}linear_fc1", merged, merged)
    yield from linear_tensors(f"{prefix}linear_fc2", vision.out_hidden_size, merged)


def linear_tensors(name: str, out_features: int, in_features: int) -> Iterator[TensorRole]:
    yield tower_tensor(f"{name}.weight", out_features, in_features)
    yield tower_tensor(f"{name}.bias", out_features)


def norm_tensors(name: str, size: int) -> Iterator[TensorRole]:
    yield tower_tensor(f"{name}.weight", size)
    yield tower_tensor(f"{name}.bias", size)


def tower_tensor(name: str, *shape: int) -> TensorRole:
    return TensorRole(TOWER + name, "tower", shape)


def check_windowed_vision(vision: VisionConfig, text_hidden_size: int) -> None:
    """Raises ``BadFileError`` for a tower that cannot be computed or does not fit its decoder."""
    check_vision(vision, text_hidden_size)
    if vision.window_px < vision.merge * vision.patch_px:
        raise BadFileError(f"windows of {vision.window_px} pixels hold no row of the decoder")
    if any(not 0 <= index < vision.depth for index in vision.full_attention_layers):
        raise BadFileError(
            f"the blocks {vision.full_attention_layers} of {vision.depth} see the whole image"
        )


def windowed_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """Dense whatever the decoder's become: a small part of the whole, and it is run seldom."""
    size, patch = vision.hidden_size, vision.patch_px
    kernel = size, vision.num_channels, vision.temporal_patch, patch, patch
    yield tower_tensor("patch_embed.proj.weight", *kernel)
    yield from gated_block_tensors(vision, has_bias=True)
    merged = vision.merged_features
    yield tower_tensor("merger.ln_q.weight", size)
    yield from linear_tensors("merger.mlp.0", merged, merged)
    yield from linear_tensors("merger.mlp.2", vision.out_hidden_size, merged)


def gated_block_tensors(vision: VisionConfig, *, has_bias: bool) -> Iterator[TensorRole]:
    size, inner = vision.hidden_size, vision.intermediate_size
    shapes = {
        "attn.qkv": (3 * size, size),
        "attn.proj": (size, size),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
    }
    for index in range(vision.depth):
        prefix = f"blocks.{index}."
        yield tower_tensor(f"{prefix}norm1.weight", size)
        yield tower_tensor(f"{prefix}norm2.weight", size)
        for name, shape in shapes.items():
            yield tower_tensor(f"{prefix}{name}.weight", *shape)
            if has_bias:
                yield tower_tensor(f"{prefix}{name}.bias", shape[0])


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
    longest = _longest_edge(processor)
    patch = processor.get("patch_size", vision.patch_px)
    sides = set(patch.values()) if isinstance(patch, dict) else {patch}
    if not sides <= {vision.patch_px, vision.patch_px * vision.merge}:
        raise BadFileError(
            f"preprocessor_config.json: patch_size is {patch}, the tower's is {vision.patch_px}"
        )
    return replace(vision, max_pixels=longest**2)


def _with_tiles(vision: VisionConfig, processor: Json) -> VisionConfig:
    """Images are cut into tiles unless ``do_image_splitting`` is false. Raises ``BadFileError``."""
    tile = dict(processor.get("max_image_size") or {}).get("longest_edge")
    if tile != vision.image_px:
        raise BadFileError(
            f"preprocessor_config.json: max_image_size is {tile!r}, the tower's is "
            f"{vision.image_px}"
        )
    division: ImageDivision = "tiles" if processor.get("do_image_splitting", True) else "none"
    return replace(vision, division=division, max_pixels=_longest_edge(processor) ** 2)


def _longest_edge(processor: Json) -> int:
    longest = dict(processor.get("size") or {}).get("longest_edge")
    if not isinstance(longest, int) or not 0 < longest <= LONGEST_SIDE_PX:
        raise BadFileError(
            f"preprocessor_config.json: size is {longest!r}, not 1 to {LONGEST_SIDE_PX} pixels"
        )
    return longest
