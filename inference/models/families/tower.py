"""The tower for pictures that Qwen3-VL and Qwen3.5 share: how config.json and
preprocessor_config.json describe it, and its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Json, TensorRole
from inference.models.families.hub_config import positive_integer, rope_parameters
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import BadFileError

TOWER = "model.visual."
VISION = "vision"
"""What the tower's tensors are for, in words."""
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
ROPE_THETA = 10000.0
AXES = 3
"""The axes of a position: time, height and width."""


def read_vision(config: Json, text: Json) -> VisionConfig | None:
    """The tower that config.json describes, before its processor has said how large pictures may
    be. ``text``: the decoder's part. ``None`` where there is none, or none that is whole: such a
    checkpoint is read as a text model. Raises ``BadFileError`` for one that would be computed
    wrongly."""
    tower, image_token_id = config.get("vision_config"), config.get("image_token_id")
    rope = rope_parameters(text)
    if not isinstance(tower, dict) or not tower.keys() >= REQUIRED:
        return None
    if not isinstance(image_token_id, int) or "mrope_section" not in rope:
        return None
    activation = tower.get("hidden_act", ACTIVATION)
    if activation != ACTIVATION:
        raise BadFileError(f"vision_config: hidden_act {activation!r} is not {ACTIVATION}")
    deepstack = tuple(int(index) for index in tower.get("deepstack_visual_indexes") or ())
    vision = VisionConfig(
        image_token_id=image_token_id,
        patch_px=positive_integer(tower, "patch_size"),
        merge=positive_integer(tower, "spatial_merge_size"),
        temporal_patch=positive_integer(tower, "temporal_patch_size"),
        min_pixels=0,
        max_pixels=0,
        num_channels=int(tower.get("in_channels", 3)),
        depth=positive_integer(tower, "depth"),
        hidden_size=positive_integer(tower, "hidden_size"),
        intermediate_size=positive_integer(tower, "intermediate_size"),
        num_heads=positive_integer(tower, "num_heads"),
        out_hidden_size=positive_integer(tower, "out_hidden_size"),
        num_position_embeddings=positive_integer(tower, "num_position_embeddings"),
        deepstack_layers=deepstack,
        rope_theta=float((tower.get("rope_parameters") or {}).get("rope_theta", ROPE_THETA)),
        mrope_section=_mrope_section(rope),
    )
    _check(vision, positive_integer(text, "hidden_size"))
    return vision


def _mrope_section(rope: Json) -> tuple[int, int, int]:
    if not rope.get("mrope_interleaved", True):
        raise BadFileError("rotary frequencies of pictures in blocks are not supported")
    section = rope["mrope_section"]
    if not isinstance(section, list | tuple) or len(section) != AXES:
        raise BadFileError(f"mrope_section is {section!r}, not three numbers")
    time, height, width = (int(size) for size in section)
    return time, height, width


def _check(vision: VisionConfig, text_hidden_size: int) -> None:
    side = math.isqrt(vision.num_position_embeddings)
    if side**2 != vision.num_position_embeddings:
        raise BadFileError(f"{vision.num_position_embeddings} position embeddings are no square")
    if vision.out_hidden_size != text_hidden_size:
        raise BadFileError(
            f"the tower's rows have {vision.out_hidden_size} numbers, and the decoder's "
            f"{text_hidden_size}"
        )
    if vision.hidden_size % (4 * vision.num_heads):
        raise BadFileError("the tower's heads cannot be rotated by height and width")


def with_pixels(config: ModelConfig, processor: Json | None) -> ModelConfig:
    """``processor``: preprocessor_config.json, which says how large pictures may be; without it
    the checkpoint is read as a text model. Raises ``BadFileError``."""
    if config.vision is None or processor is None:
        return replace(config, vision=None)
    size: dict[str, Any] = dict(processor.get("size") or {})
    least = processor.get("min_pixels") or size.get("shortest_edge")
    most = processor.get("max_pixels") or size.get("longest_edge")
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise BadFileError(f"preprocessor_config.json: pictures of {least!r} to {most!r} pixels")
    for key, known in (
        ("patch_size", config.vision.patch_px),
        ("merge_size", config.vision.merge),
        ("temporal_patch_size", config.vision.temporal_patch),
    ):
        if (said := processor.get(key, known)) != known:
            raise BadFileError(f"preprocessor_config.json: {key} is {said}, the tower's is {known}")
    vision = replace(config.vision, min_pixels=least, max_pixels=most)
    return replace(config, vision=vision)


def tower_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """Dense whatever the decoder's become: a small part of the whole, and it is run seldom."""
    size, patch = vision.hidden_size, vision.patch_px
    kernel = size, vision.num_channels, vision.temporal_patch, patch, patch
    yield _tensor("patch_embed.proj.weight", *kernel)
    yield _tensor("patch_embed.proj.bias", size)
    yield _tensor("pos_embed.weight", vision.num_position_embeddings, size)
    for index in range(vision.depth):
        prefix = f"blocks.{index}."
        yield from _norm(f"{prefix}norm1", size)
        yield from _norm(f"{prefix}norm2", size)
        yield from _linear(f"{prefix}attn.qkv", 3 * size, size)
        yield from _linear(f"{prefix}attn.proj", size, size)
        yield from _linear(f"{prefix}mlp.linear_fc1", vision.intermediate_size, size)
        yield from _linear(f"{prefix}mlp.linear_fc2", size, vision.intermediate_size)
    yield from _merger("merger.", vision, size)
    for index in range(len(vision.deepstack_layers)):
        yield from _merger(f"deepstack_merger_list.{index}.", vision, vision.merged_features)


def _merger(prefix: str, vision: VisionConfig, norm_size: int) -> Iterator[TensorRole]:
    merged = vision.merged_features
    yield from _norm(f"{prefix}norm", norm_size)
    yield from _linear(f"{prefix}linear_fc1", merged, merged)
    yield from _linear(f"{prefix}linear_fc2", vision.out_hidden_size, merged)


def _linear(name: str, out_features: int, in_features: int) -> Iterator[TensorRole]:
    yield _tensor(f"{name}.weight", out_features, in_features)
    yield _tensor(f"{name}.bias", out_features)


def _norm(name: str, size: int) -> Iterator[TensorRole]:
    yield _tensor(f"{name}.weight", size)
    yield _tensor(f"{name}.bias", size)


def _tensor(name: str, *shape: int) -> TensorRole:
    return TensorRole(TOWER + name, "tower", shape)
