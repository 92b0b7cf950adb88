"""What all vision towers share, however a file describes them: their tensors, what makes one that
cannot be computed, and the sizes of images in preprocessor_config.json."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.hub_config import Json
from inference.models.families.roles import TensorRole
from inference.models.vision_config import VisionConfig
from inference.protocol.images import LONGEST_SIDE_PX
from inference.protocol.load_errors import BadFileError

TOWER = "model.visual."
VISION = "vision"
"""The purpose of the tower's tensors, in words."""
ROPE_THETA = 10000.0
NORM_EPS = 1e-6


def tower_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """Dense whatever the decoder's become: a small part of the whole, and it is run seldom."""
    size, patch = vision.hidden_size, vision.patch_px
    frames = (vision.temporal_patch,) if vision.kind in ("qwen3_vl", "qwen2_5_vl") else ()
    yield _tensor("patch_embed.proj.weight", size, vision.num_channels, *frames, patch, patch)
    if not vision.is_gated:
        yield _tensor("patch_embed.proj.bias", size)
    if vision.num_position_embeddings:
        yield _tensor("pos_embed.weight", vision.num_position_embeddings, size)
    for index in range(vision.depth):
        yield from _block(vision, f"blocks.{index}.")
    yield from _merger(vision)


def _tensor(name: str, *shape: int) -> TensorRole:
    return TensorRole(TOWER + name, "tower", shape)


def _linear(name: str, outputs: int, *inputs: int, has_bias: bool = True) -> Iterator[TensorRole]:
    """A projection, or a norm where it has no ``inputs``."""
    yield _tensor(f"{name}.weight", outputs, *inputs)
    if has_bias:
        yield _tensor(f"{name}.bias", outputs)


def _block(vision: VisionConfig, prefix: str) -> Iterator[TensorRole]:
    size, inner = vision.hidden_size, vision.intermediate_size
    gated = {"gate_proj": (inner, size), "up_proj": (inner, size), "down_proj": (size, inner)}
    plain = {"linear_fc1": (inner, size), "linear_fc2": (size, inner)}
    for name in ("norm1", "norm2"):
        yield from _linear(prefix + name, size, has_bias=not vision.is_gated)
    shapes = {"attn.qkv": (3 * size, size), "attn.proj": (size, size)}
    shapes |= {f"mlp.{n}": s for n, s in (gated if vision.is_gated else plain).items()}
    for name, shape in shapes.items():
        yield from _linear(prefix + name, *shape, has_bias=vision.kind != "pixtral")


def _merger(vision: VisionConfig) -> Iterator[TensorRole]:
    """What makes rows of the decoder of the blocks' output."""
    size, merged, out = vision.hidden_size, vision.merged_features, vision.out_hidden_size
    match vision.kind:
        case "qwen3_vl":
            mergers = {f"deepstack_merger_list.{i}": merged for i in range(vision.num_deepstack)}
            for prefix, normed in ({"merger": size} | mergers).items():
                yield from _linear(f"{prefix}.norm", normed)
                yield from _linear(f"{prefix}.linear_fc1", merged, merged)
                yield from _linear(f"{prefix}.linear_fc2", out, merged)
        case "qwen2_5_vl":
            yield _tensor("merger.ln_q.weight", size)
            yield from _linear("merger.mlp.0", merged, merged)
            yield from _linear("merger.mlp.2", out, merged)
        case "gemma3":
            yield from _linear("post_norm", size)
            yield _tensor("merger.norm.weight", size)
            yield _tensor("merger.proj.weight", size, out)
        case "idefics3":
            yield from _linear("post_norm", size)
            yield _tensor("merger.proj.weight", out, merged)
        case "pixtral":
            yield _tensor("pre_norm.weight", size)
            if vision.merge > 1:
                yield _tensor("merger.norm.weight", size)
                yield _tensor("merger.merging.weight", size, merged)
            for name, inputs in (("linear_1", size), ("linear_2", out)):
                yield from _linear(
                    f"merger.{name}", out, inputs, has_bias=vision.has_projector_bias
                )


def checked_tower(vision: VisionConfig, text_hidden_size: int) -> VisionConfig:
    """Raises ``BadFileError`` for a tower that cannot be computed or does not fit its decoder."""
    unit_px = vision.merge * vision.patch_px
    if vision.image_px and not _is_square_whole(vision):
        of = "tiles" if vision.kind == "idefics3" else "images"
        raise BadFileError(
            f"{of} of {vision.image_px} pixels each way are no whole number of "
            f"{vision.merge} x {vision.merge} patches of {vision.patch_px}"
        )
    if math.isqrt(vision.num_position_embeddings) ** 2 != vision.num_position_embeddings:
        raise BadFileError(f"{vision.num_position_embeddings} position embeddings are no square")
    if vision.out_hidden_size != text_hidden_size:
        raise BadFileError(
            f"the tower's rows have {vision.out_hidden_size} numbers, and the decoder's "
            f"{text_hidden_size}"
        )
    if vision.hidden_size % vision.num_heads and not vision.rope_theta:
        raise BadFileError(
            f"{vision.hidden_size} features of the tower are not {vision.num_heads} equal heads"
        )
    if vision.rope_theta and vision.hidden_size % (4 * vision.num_heads):
        raise BadFileError("the tower's heads cannot be rotated by height and width")
    if vision.kind == "qwen2_5_vl" and vision.window_px < unit_px:
        raise BadFileError(f"windows of {vision.window_px} pixels hold no row of the decoder")
    if any(not 0 <= index < vision.depth for index in vision.full_attention_layers):
        raise BadFileError(
            f"the blocks {vision.full_attention_layers} of {vision.depth} see the whole image"
        )
    return vision


def _is_square_whole(vision: VisionConfig) -> bool:
    """A tile's last pixels may belong to no patch."""
    if vision.kind == "idefics3":
        side = vision.image_px // vision.patch_px
        return side > 0 and side % vision.merge == 0
    return vision.image_px % (vision.patch_px * vision.merge) == 0


def with_pixels(config: ModelConfig, processor: Json | None) -> ModelConfig:
    """``processor``: preprocessor_config.json, which limits the size of images; without it the
    checkpoint is read as a text model. Raises ``BadFileError``."""
    if config.vision is None or processor is None:
        return replace(config, vision=None)
    if not processor.get("do_resize", True):
        raise BadFileError("preprocessor_config.json: do_resize is false, which is not supported")
    vision = config.vision
    match vision.kind:
        case "gemma3":
            _check_square(vision.image_px, processor)
            changes: dict[str, Any] = {}
        case "idefics3":
            changes = _of_tiles(vision, processor)
        case "pixtral":
            changes = _of_rows(vision, processor)
        case _:
            changes = _between(vision, processor)
    return replace(config, vision=replace(vision, **changes))


def _between(vision: VisionConfig, processor: Json) -> dict[str, Any]:
    size: dict[str, Any] = dict(processor.get("size") or {})
    least = processor.get("min_pixels") or size.get("shortest_edge")
    most = processor.get("max_pixels") or size.get("longest_edge")
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise BadFileError(f"preprocessor_config.json: images of {least!r} to {most!r} pixels")
    for key, known in (
        ("patch_size", vision.patch_px),
        ("merge_size", vision.merge),
        ("temporal_patch_size", vision.temporal_patch),
    ):
        if (found := processor.get(key, known)) != known:
            raise BadFileError(
                f"preprocessor_config.json: {key} is {found}, the tower's is {known}"
            )
    return {"min_pixels": least, "max_pixels": most}


def _check_square(image_px: int, processor: Json) -> None:
    """Raises ``BadFileError`` where the processor makes images that are not the tower's."""
    size, wanted = processor.get("size"), {"height": image_px, "width": image_px}
    if size != wanted:
        raise BadFileError(f"preprocessor_config.json: size is {size!r}, the tower's is {wanted}")
    if processor.get("do_pan_and_scan"):
        raise BadFileError("preprocessor_config.json: do_pan_and_scan is not supported")


def _of_rows(vision: VisionConfig, processor: Json) -> dict[str, Any]:
    longest = _longest_edge(processor)
    patch = processor.get("patch_size", vision.patch_px)
    sides = set(patch.values()) if isinstance(patch, dict) else {patch}
    if not sides <= {vision.patch_px, vision.patch_px * vision.merge}:
        raise BadFileError(
            f"preprocessor_config.json: patch_size is {patch}, the tower's is {vision.patch_px}"
        )
    return {"max_pixels": longest**2}


def _of_tiles(vision: VisionConfig, processor: Json) -> dict[str, Any]:
    """Images are cut into tiles unless ``do_image_splitting`` is false. Raises ``BadFileError``."""
    tile = dict(processor.get("max_image_size") or {}).get("longest_edge")
    if tile != vision.image_px:
        raise BadFileError(
            f"preprocessor_config.json: max_image_size is {tile!r}, the tower's is "
            f"{vision.image_px}"
        )
    division = "tiles" if processor.get("do_image_splitting", True) else "none"
    return {"division": division, "max_pixels": _longest_edge(processor) ** 2}


def _longest_edge(processor: Json) -> int:
    longest = dict(processor.get("size") or {}).get("longest_edge")
    if not isinstance(longest, int) or not 0 < longest <= LONGEST_SIDE_PX:
        raise BadFileError(
            f"preprocessor_config.json: size is {longest!r}, not 1 to {LONGEST_SIDE_PX} pixels"
        )
    return longest
