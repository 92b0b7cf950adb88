"""All vision towers, however a file describes them: their tensors and names, which towers cannot be
computed, and the sizes of images in preprocessor_config.json. llama.cpp's gguf-py/gguf/constants.py
lists the names of mmproj files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.hub_config import Json, hub_name
from inference.models.families.roles import TensorRole
from inference.models.vision_config import TowerKind, VisionConfig
from inference.protocol.images import LONGEST_SIDE_PX
from inference.protocol.load_errors import BadFileError

TOWER = "model.visual."
VISION = "vision"
ROPE_THETA = 10000.0
NORM_EPS = 1e-6


def tower_tensors(vision: VisionConfig) -> Iterator[TensorRole]:
    """Dense whatever the decoder's become: a tower is small, and seldom run."""
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
    """``processor``: preprocessor_config.json; ``None``: a text model. Raises ``BadFileError``."""
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
    """Images are cut into tiles unless ``do_image_splitting`` is false."""
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


_HUB_TOWER = re.compile(r"(?:model\.)?vision_(?:tower\.(?:vision_model\.)?|model\.)(.+)")
_HUB_PROJECTOR = re.compile(r"(?:model\.)?(?:multi_modal_projector|connector)\.(.+)")
_HUB_BLOCK = re.compile(r"(?:encoder|transformer)\.layers\.(\d+)\.(.+)\.(weight|bias)")
_HUB_ALONE = {
    "embeddings.patch_embedding.weight": "patch_embed.proj.weight",
    "embeddings.patch_embedding.bias": "patch_embed.proj.bias",
    "embeddings.position_embedding.weight": "pos_embed.weight",
    "post_layernorm.weight": "post_norm.weight",
    "post_layernorm.bias": "post_norm.bias",
    "patch_conv.weight": "patch_embed.proj.weight",
    "ln_pre.weight": "pre_norm.weight",
}
_HUB_PROJECTORS = {
    "mm_input_projection_weight": "proj.weight",
    "mm_soft_emb_norm.weight": "norm.weight",
    "modality_projection.proj.weight": "proj.weight",
    "patch_merger.merging_layer.weight": "merging.weight",
}
_HUB_BLOCKS = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "self_attn.out_proj": "attn.proj",
    "mlp.fc1": "mlp.linear_fc1",
    "mlp.fc2": "mlp.linear_fc2",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
    "attention.o_proj": "attn.proj",
    "feed_forward.gate_proj": "mlp.gate_proj",
    "feed_forward.up_proj": "mlp.up_proj",
    "feed_forward.down_proj": "mlp.down_proj",
}
"""SigLIP's names within a block, then Pixtral's. Those of Qwen's towers are the model's own."""
_HUB_QKV = re.compile(r"(?:self_attn|attention)\.([qkv])_proj")


def tower_hub_name(name: str) -> str | None:
    """Returns ``None`` for SigLIP's head, too, which is not computed."""
    if match := _HUB_PROJECTOR.fullmatch(name):
        return f"{TOWER}merger.{_HUB_PROJECTORS.get(match[1], match[1])}"
    match = _HUB_TOWER.fullmatch(name)
    if match is None or match[1].startswith("head."):
        return None
    return TOWER + (_HUB_ALONE.get(match[1]) or _in_block(match[1]))


def _in_block(name: str) -> str:
    match = _HUB_BLOCK.fullmatch(name)
    if match is None:
        return name
    index, inner, kind = match.groups()
    if part := _HUB_QKV.fullmatch(inner):
        return f"blocks.{index}.attn.qkv.{kind}.{'qkv'.index(part[1])}"
    return f"blocks.{index}.{_HUB_BLOCKS.get(inner, inner)}.{kind}"


def towered_name(name: str) -> str:
    return tower_hub_name(name) or hub_name(name)


PATCHES, POSITIONS = "v.patch_embd.weight", "v.position_embd.weight"
PATCH_KERNEL = f"{TOWER}patch_embed.proj.weight"
FRAME_AXIS = 2
"""Along which its parts, one for each of two frames, are put together."""
_ROTATED = re.compile(rf"{re.escape(TOWER)}blocks\.\d+\.attn\.qkv\.weight\.[01]")
_STEMS: dict[TowerKind, dict[str, str]] = {
    "qwen3_vl": {
        "v.post_ln": "merger.norm",
        "mm.0": "merger.linear_fc1",
        "mm.2": "merger.linear_fc2",
    },
    "qwen2_5_vl": {
        "v.post_ln": "merger.ln_q",
        "mm.0": "merger.mlp.0",
        "mm.2": "merger.mlp.2",
    },
    "gemma3": {
        "v.post_ln": "post_norm",
        "mm.input_projection": "merger.proj",
        "mm.soft_emb_norm": "merger.norm",
    },
    "idefics3": {"v.post_ln": "post_norm", "mm.model.fc": "merger.proj"},
    "pixtral": {
        "v.pre_ln": "pre_norm",
        "mm.input_norm": "merger.norm",
        "mm.patch_merger": "merger.merging",
        "mm.1": "merger.linear_1",
        "mm.2": "merger.linear_2",
    },
}
_ATTENTION = {"ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj"}
_PLAIN = _ATTENTION | {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
_SWAPPED = _ATTENTION | {"ffn_down": "mlp.linear_fc1", "ffn_up": "mlp.linear_fc2"}
_GATED = _ATTENTION | {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
_PARTS_OF_QKV = {"attn_q": 0, "attn_k": 1, "attn_v": 2}
_DEEPSTACK = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_NUMBERED = re.compile(r"v\.(blk|deepstack)\.(\d+)\.(\w+)\.(weight|bias)")


def is_rotated(name: str) -> bool:
    """``name``: the model's. llama.cpp's converter writes these rows in pairs for Pixtral."""
    return _ROTATED.fullmatch(name) is not None


def tower_name(name: str, vision: VisionConfig) -> str | None:
    """``v.blk.0.attn_qkv.weight`` -> ``model.visual.blocks.0.attn.qkv.weight``; a part of a tensor
    gets a number at its end."""
    has_frames = vision.temporal_patch > 1
    alone = {
        PATCHES: f"{PATCH_KERNEL}.0" if has_frames else PATCH_KERNEL,
        "v.patch_embd.bias": f"{TOWER}patch_embed.proj.bias",
        POSITIONS: f"{TOWER}pos_embed.weight",
    }
    if has_frames:
        alone[f"{PATCHES}.1"] = f"{PATCH_KERNEL}.1"
    if name in alone:
        return alone[name]
    stem, _, kind = name.rpartition(".")
    if (found := _STEMS[vision.kind].get(stem)) and kind in ("weight", "bias"):
        return f"{TOWER}{found}.{kind}"
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return None
    group, index, inner, kind = match[1], int(match[2]), match[3], match[4]
    if group == "blk":
        if (part := _PARTS_OF_QKV.get(inner)) is not None:
            return f"{TOWER}blocks.{index}.attn.qkv.{kind}.{part}"
        plain = _SWAPPED if vision.has_swapped_mlp_names else _PLAIN
        found = (_GATED if vision.is_gated else plain).get(inner)
        return found and f"{TOWER}blocks.{index}.{found}.{kind}"
    if inner not in _DEEPSTACK or index not in vision.deepstack_layers:
        return None
    place = vision.deepstack_layers.index(index)
    return f"{TOWER}deepstack_merger_list.{place}.{_DEEPSTACK[inner]}.{kind}"
