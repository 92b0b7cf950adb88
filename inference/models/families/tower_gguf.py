"""The vision tower of a GGUF model: how an mmproj file's metadata describe it, and its tensors.

llama.cpp's converter puts a model's tower and projector into a file of their own, with the
architecture ``clip``. Keys and names: gguf-py/gguf/constants.py. Imports no torch.

    text model's metadata ─┐
    mmproj's metadata ─────┴─▶ VisionConfig          v.blk.0.ln1.weight ─▶ model.visual.blocks.0.…
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.idefics3_tower import (
    IDEFICS3_PROJECTOR,
    idefics3_problem,
    read_idefics3,
)
from inference.models.families.idefics3_tower import STEMS as IDEFICS3_STEMS
from inference.models.families.pixtral_tower import (
    BREAK_ROW,
    PIXTRAL_PROJECTOR,
    pixtral_problem,
    read_pixtral,
)
from inference.models.families.pixtral_tower import STEMS as PIXTRAL_STEMS
from inference.models.families.predictor import gguf_nextn_name
from inference.models.families.projector_keys import (
    PATCHES,
    POSITIONS,
    SECTION,
    check_computed,
    common_fields,
    tensor_shape,
    vocabulary,
)
from inference.models.families.siglip_tower import (
    GEMMA3_PROJECTOR,
    STEMS,
    read_siglip,
    siglip_problem,
)
from inference.models.families.tower import (
    AXES,
    ROPE_THETA,
    TOWER,
    check_vision,
    check_windowed_vision,
)
from inference.models.vision_config import TowerKind, VisionConfig
from inference.protocol.load_errors import BadFileError

ARCHITECTURE = "clip"
QWEN2_5_PROJECTOR, QWEN3_PROJECTOR = "qwen2.5vl_merger", "qwen3vl_merger"
PROJECTOR_TYPES = (
    QWEN2_5_PROJECTOR,
    QWEN3_PROJECTOR,
    GEMMA3_PROJECTOR,
    IDEFICS3_PROJECTOR,
    PIXTRAL_PROJECTOR,
)
"""The values of ``clip.projector_type`` that are computed here."""
UNUSED_TENSORS = frozenset({BREAK_ROW})
"""Tensors of mmproj files that are not computed with."""
IMAGE_TOKEN = "<|image_pad|>"
SECTIONS = "rope.dimension_sections"
LEAST_TOKENS, MOST_TOKENS = 8, 4096
"""The bounds on an image's tokens where the file bounds its pixels by no key: llama.cpp's for
Qwen's towers."""
MERGED = "mm.0.weight"
WINDOW_PX = 112
PATCH_KERNEL = f"{TOWER}patch_embed.proj.weight"
FRAME_AXIS = 2
"""Along which its parts, one for each of two frames, are put together."""

_FRAMES = {PATCHES: f"{PATCH_KERNEL}.0", f"{PATCHES}.1": f"{PATCH_KERNEL}.1"}
_ONE_FRAME = {PATCHES: PATCH_KERNEL}
_NAMES = {
    "v.patch_embd.bias": f"{TOWER}patch_embed.proj.bias",
    POSITIONS: f"{TOWER}pos_embed.weight",
}
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
    "gemma3": STEMS,
    "idefics3": IDEFICS3_STEMS,
    "pixtral": PIXTRAL_STEMS,
}
_ATTENTION = {"ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj"}
_PLAIN = _ATTENTION | {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
_SWAPPED = _ATTENTION | {"ffn_down": "mlp.linear_fc1", "ffn_up": "mlp.linear_fc2"}
_GATED = _ATTENTION | {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK: dict[TowerKind, dict[str, str]] = {
    "qwen3_vl": _PLAIN,
    "gemma3": _PLAIN,
    "idefics3": _PLAIN,
    "qwen2_5_vl": _GATED,
    "pixtral": _GATED,
}
_PARTS_OF_QKV = {"attn_q": 0, "attn_k": 1, "attn_v": 2}
_DEEPSTACK = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_NUMBERED = re.compile(r"v\.(blk|deepstack)\.(\d+)\.(\w+)\.(weight|bias)")


def model_name(name: str, family: Family, config: ModelConfig) -> str | None:
    """The model's name of a tensor of its GGUF files, an mmproj file among them; ``None`` for one
    that it does not compute with."""
    if config.vision is not None and (found := tower_name(name, config.vision)) is not None:
        return found
    if config.has_predictor and (found := gguf_nextn_name(name, config)) is not None:
        return found
    return family.gguf_name(name)


def tower_name(name: str, vision: VisionConfig) -> str | None:
    """``v.blk.0.attn_qkv.weight`` -> ``model.visual.blocks.0.attn.qkv.weight``, and with a number
    at its end for a part of a tensor; ``None`` for a tensor that is not the tower's."""
    alone = _NAMES | (_FRAMES if vision.temporal_patch > 1 else _ONE_FRAME)
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
        found = (_SWAPPED if vision.has_swapped_mlp_names else _BLOCK[vision.kind]).get(inner)
        return found and f"{TOWER}blocks.{index}.{found}.{kind}"
    if inner not in _DEEPSTACK or index not in vision.deepstack_layers:
        return None
    place = vision.deepstack_layers.index(index)
    return f"{TOWER}deepstack_merger_list.{place}.{_DEEPSTACK[inner]}.{kind}"


def projector_problem(projector: Mapping[str, Any], text: GGUFKeys, family: Family) -> str | None:
    """Why the text model cannot have this mmproj file's tower, in words; ``None``: it can.
    ``projector``: the file's metadata. ``family``: of the text model."""
    architecture = projector.get("general.architecture")
    if architecture != ARCHITECTURE:
        return f"its architecture is {architecture!r}, where an mmproj file has {ARCHITECTURE!r}"
    kind = projector_type(projector)
    if kind not in PROJECTOR_TYPES:
        known = ", ".join(PROJECTOR_TYPES)
        return f"its projector is {kind!r}, which is not computed here; known: {known}"
    if not family.gguf_projectors:
        return f"no images are computed for the architecture {text.architecture!r}"
    if kind not in family.gguf_projectors:
        known = " or ".join(map(repr, family.gguf_projectors))
        return f"its projector is {kind!r}, and {text.architecture} has {known}"
    width, text_width = projector.get(f"{SECTION}.projection_dim"), text.find("embedding_length")
    if width != text_width:
        return f"its rows have {width} numbers, and the text model's {text_width}"
    return _PROBLEMS.get(kind, _merger_problem)(text)


def _merger_problem(text: GGUFKeys) -> str | None:
    """Why the text model cannot have a tower of Qwen's, in words; ``None``: it can."""
    if IMAGE_TOKEN not in vocabulary(text):
        return f"the text model's vocabulary has no {IMAGE_TOKEN}"
    if f"{text.architecture}.{SECTIONS}" not in text.metadata:
        return f"the text model's metadata lack {text.architecture}.{SECTIONS}; convert it anew"
    return None


_PROBLEMS: dict[str, Callable[[GGUFKeys], str | None]] = {
    GEMMA3_PROJECTOR: siglip_problem,
    IDEFICS3_PROJECTOR: idefics3_problem,
    PIXTRAL_PROJECTOR: pixtral_problem,
}
_READERS: dict[str, Callable[[GGUFKeys, GGUFKeys], VisionConfig]] = {
    GEMMA3_PROJECTOR: read_siglip,
    IDEFICS3_PROJECTOR: read_idefics3,
    PIXTRAL_PROJECTOR: read_pixtral,
}
"""By projector; Qwen's are read by the functions here."""


def projector_type(projector: Mapping[str, Any]) -> str | None:
    """Files of several towers name each one's."""
    found = projector.get("clip.projector_type") or projector.get(f"{SECTION}.projector_type")
    return None if found is None else str(found)


def read_projector(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    """The tower of an mmproj file that has no ``projector_problem``. Raises ``BadFileError``."""
    kind = projector_type(projector.metadata)
    assert kind is not None, "it was checked"
    return _READERS.get(kind, _read_merger)(projector, text)


def _read_merger(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    is_windowed = projector_type(projector.metadata) == QWEN2_5_PROJECTOR
    check_computed(projector, "use_silu" if is_windowed else "use_gelu")
    fields, merge = common_fields(projector), projector.integer("spatial_merge_size", 2)
    depth, row_pixels = fields["depth"], (merge * fields["patch_px"]) ** 2
    vision = VisionConfig(
        **fields,
        image_token_id=vocabulary(text).index(IMAGE_TOKEN),
        merge=merge,
        temporal_patch=2,
        min_pixels=projector.integer("image_min_pixels", LEAST_TOKENS * row_pixels),
        max_pixels=projector.integer("image_max_pixels", MOST_TOKENS * row_pixels),
        rope_theta=ROPE_THETA,
        mrope_section=_mrope_section(text),
        **(_windowed(projector, depth) if is_windowed else _with_positions(projector, depth)),
    )
    if not max(vision.min_pixels, row_pixels) <= vision.max_pixels:
        raise BadFileError(f"images of {vision.min_pixels} to {vision.max_pixels} pixels")
    _check_sides(projector, vision)
    check = check_windowed_vision if is_windowed else check_vision
    check(vision, text.integer("embedding_length"))
    return vision


def _check_sides(projector: GGUFKeys, vision: VisionConfig) -> None:
    """Raises ``BadFileError`` where the tensors have other patches than the metadata."""
    kernel, merged = tensor_shape(projector, PATCHES, 4)[2:], tensor_shape(projector, MERGED, 2)[1]
    if kernel != (vision.patch_px, vision.patch_px) or merged != vision.merged_features:
        raise BadFileError(
            f"{PATCHES} is of {kernel} pixels and {MERGED} of {merged} numbers, and the metadata "
            f"declare patches of {vision.patch_px} pixels and {vision.merged_features} numbers"
        )


def _with_positions(projector: GGUFKeys, depth: int) -> dict[str, Any]:
    return {
        "num_position_embeddings": tensor_shape(projector, POSITIONS, 2)[0],
        "deepstack_layers": _deepstack_layers(projector, depth),
    }


def _windowed(projector: GGUFKeys, depth: int) -> dict[str, Any]:
    """Every so many blocks one sees the whole image."""
    period = projector.integer("n_wa_pattern")
    return {
        "kind": "qwen2_5_vl",
        "window_px": projector.integer("window_size", WINDOW_PX),
        "full_attention_layers": tuple(range(period - 1, depth, period)),
        "is_mrope_interleaved": False,
    }


def _deepstack_layers(projector: GGUFKeys, depth: int) -> tuple[int, ...]:
    """The file has a mark for each block."""
    marks = projector.metadata.get(f"{SECTION}.is_deepstack_layers", [])
    if not isinstance(marks, list) or len(marks) not in (0, depth):
        raise BadFileError(f"{SECTION}.is_deepstack_layers is no list of {depth} marks")
    return tuple(index for index, mark in enumerate(marks) if mark)


def _mrope_section(text: GGUFKeys) -> tuple[int, int, int]:
    """A fourth number is llama.cpp's padding."""
    sections = text.metadata[f"{text.architecture}.{SECTIONS}"]
    if not isinstance(sections, list) or len(sections) < AXES or any(sections[AXES:]):
        raise BadFileError(f"{text.architecture}.{SECTIONS} is {sections!r}, not three numbers")
    time, height, width = (int(size) for size in sections[:AXES])
    return time, height, width
