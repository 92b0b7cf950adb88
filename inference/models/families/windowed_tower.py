"""The vision tower of Qwen2.5-VL: how config.json describes it, and its tensors. Most of its blocks
see a window of the image; it has no learned positions."""

from __future__ import annotations

from collections.abc import Iterator

from inference.models.families.family import Json, TensorRole
from inference.models.families.hub_config import check_activation, positive_integer, rope_parameters
from inference.models.families.tower import (
    ROPE_THETA,
    check_vision,
    linear_tensors,
    mrope_section,
    tower_tensor,
)
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import BadFileError

REQUIRED = frozenset(
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


def read_windowed_vision(config: Json, text: Json) -> VisionConfig | None:
    """The tower that config.json describes, without its processor's image sizes. ``text``: the
    decoder's part. ``None`` where there is none, or none that is whole. Raises ``BadFileError`` for
    one that would be computed wrongly."""
    tower, image_token_id = config.get("vision_config"), config.get("image_token_id")
    rope = rope_parameters(text)
    if not isinstance(tower, dict) or not tower.keys() >= REQUIRED:
        return None
    if not isinstance(image_token_id, int) or "mrope_section" not in rope:
        return None
    check_activation(tower, "silu")
    vision = VisionConfig(
        kind="qwen2_5_vl",
        image_token_id=image_token_id,
        patch_px=positive_integer(tower, "patch_size"),
        merge=positive_integer(tower, "spatial_merge_size"),
        temporal_patch=int(tower.get("temporal_patch_size", 2)),
        min_pixels=0,
        max_pixels=0,
        num_channels=int(tower.get("in_channels") or tower.get("in_chans") or 3),
        depth=positive_integer(tower, "depth"),
        hidden_size=positive_integer(tower, "hidden_size"),
        intermediate_size=positive_integer(tower, "intermediate_size"),
        num_heads=positive_integer(tower, "num_heads"),
        out_hidden_size=positive_integer(tower, "out_hidden_size"),
        window_px=positive_integer(tower, "window_size"),
        full_attention_layers=tuple(int(index) for index in tower["fullatt_block_indexes"]),
        rope_theta=float((tower.get("rope_parameters") or {}).get("rope_theta", ROPE_THETA)),
        mrope_section=mrope_section(rope),
        is_mrope_interleaved=False,
    )
    check_windowed_vision(vision, positive_integer(text, "hidden_size"))
    return vision


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
    size, inner, patch = vision.hidden_size, vision.intermediate_size, vision.patch_px
    kernel = size, vision.num_channels, vision.temporal_patch, patch, patch
    yield tower_tensor("patch_embed.proj.weight", *kernel)
    for index in range(vision.depth):
        prefix = f"blocks.{index}."
        yield tower_tensor(f"{prefix}norm1.weight", size)
        yield tower_tensor(f"{prefix}norm2.weight", size)
        yield from linear_tensors(f"{prefix}attn.qkv", 3 * size, size)
        yield from linear_tensors(f"{prefix}attn.proj", size, size)
        yield from linear_tensors(f"{prefix}mlp.gate_proj", inner, size)
        yield from linear_tensors(f"{prefix}mlp.up_proj", inner, size)
        yield from linear_tensors(f"{prefix}mlp.down_proj", size, inner)
    merged = vision.merged_features
    yield tower_tensor("merger.ln_q.weight", size)
    yield from linear_tensors("merger.mlp.0", merged, merged)
    yield from linear_tensors("merger.mlp.2", vision.out_hidden_size, merged)
