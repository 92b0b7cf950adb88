"""The vision tower of a GGUF model, from its mmproj file: llama.cpp's converter puts tower and
projector into a file of their own, with the architecture ``clip``. Keys and names:
gguf-py/gguf/constants.py. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.tower import NORM_EPS, PATCHES, POSITIONS, ROPE_THETA, checked_tower
from inference.models.families.tower_hub import (
    AROUND,
    AXES,
    PIXTRAL_EPS,
    ROW_TOKEN,
    ROW_TOKENS,
    SOFT_TOKEN,
    TILE_TOKEN,
    row_fields,
    soft_text,
    square_fields,
    tile_fields,
)
from inference.models.vision_config import VisionConfig
from inference.protocol.images import LONGEST_SIDE_PX
from inference.protocol.load_errors import BadFileError

ARCHITECTURE = "clip"
SECTION = "clip.vision"
QWEN2_5_PROJECTOR, QWEN3_PROJECTOR = "qwen2.5vl_merger", "qwen3vl_merger"
GEMMA3_PROJECTOR, IDEFICS3_PROJECTOR, PIXTRAL_PROJECTOR = "gemma3", "idefics3", "pixtral"
UNUSED_TENSORS = frozenset({"v.token_embd.img_break"})
"""Pixtral's mmproj files repeat the text model's embedding of the token between rows."""
NORM_EPS_KEY = "attention.layer_norm_epsilon"
PAD_TOKEN = "<|image_pad|>"
SECTIONS = "rope.dimension_sections"
LEAST_TOKENS, MOST_TOKENS = 8, 4096
"""llama.cpp's for Qwen's towers, where the file bounds an image's pixels by no key."""
MERGED = "mm.0.weight"
WINDOW_PX = 112
_UNUSED = re.compile(r"<unused\d+>")


def projector_problem(projector: Mapping[str, Any], text: GGUFKeys, family: Family) -> str | None:
    """A sentence for people, or ``None``. ``projector``: the mmproj file's metadata."""
    architecture = projector.get("general.architecture")
    if architecture != ARCHITECTURE:
        return f"its architecture is {architecture!r}, where an mmproj file has {ARCHITECTURE!r}"
    kind = projector_type(projector)
    if kind not in READERS:
        known = ", ".join(READERS)
        return f"its projector is {kind!r}, which is not computed here; known: {known}"
    if not family.gguf_projectors:
        return f"no images are computed for the architecture {text.architecture!r}"
    if kind not in family.gguf_projectors:
        known = " or ".join(map(repr, family.gguf_projectors))
        return f"its projector is {kind!r}, and {text.architecture} has {known}"
    width, text_width = projector.get(f"{SECTION}.projection_dim"), text.find("embedding_length")
    if width != text_width:
        return f"its rows have {width} numbers, and the text model's {text_width}"
    if kind == GEMMA3_PROJECTOR:
        if find_soft_token(text) is None:
            return f"the text model's vocabulary has neither {SOFT_TOKEN} nor an unused token"
        return None
    wanted = {IDEFICS3_PROJECTOR: (TILE_TOKEN, AROUND), PIXTRAL_PROJECTOR: ROW_TOKENS}
    tokens = _vocabulary(text)
    if lacks := [token for token in wanted.get(kind, (PAD_TOKEN,)) if token not in tokens]:
        return f"the text model's vocabulary has no {lacks[0]}"
    if kind not in wanted and f"{text.architecture}.{SECTIONS}" not in text.metadata:
        return f"the text model's metadata lack {text.architecture}.{SECTIONS}; convert it anew"
    return None


def projector_type(projector: Mapping[str, Any]) -> str | None:
    """Files of several towers name the type of each."""
    found = projector.get("clip.projector_type") or projector.get(f"{SECTION}.projector_type")
    return None if found is None else str(found)


def read_projector(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    """Call it only without a ``projector_problem``. Raises ``BadFileError``."""
    kind = projector_type(projector.metadata)
    assert kind is not None, "it was checked"
    return checked_tower(READERS[kind](projector, text), text.integer("embedding_length"))


def _read_qwen3(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    _check_computed(projector, "use_gelu")
    depth = projector.integer("block_count")
    marks = projector.metadata.get(f"{SECTION}.is_deepstack_layers", [])
    if not isinstance(marks, list) or len(marks) not in (0, depth):
        raise BadFileError(f"{SECTION}.is_deepstack_layers is no list of {depth} marks")
    return _merger(
        projector,
        text,
        num_position_embeddings=_tensor_shape(projector, POSITIONS, 2)[0],
        deepstack_layers=tuple(index for index, mark in enumerate(marks) if mark),
    )


def _read_qwen2_5(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    """One of every ``n_wa_pattern`` blocks sees the whole image."""
    _check_computed(projector, "use_silu")
    period, depth = projector.integer("n_wa_pattern"), projector.integer("block_count")
    return _merger(
        projector,
        text,
        kind="qwen2_5_vl",
        window_px=projector.integer("window_size", WINDOW_PX),
        full_attention_layers=tuple(range(period - 1, depth, period)),
        is_mrope_interleaved=False,
    )


def _merger(projector: GGUFKeys, text: GGUFKeys, **own: Any) -> VisionConfig:
    fields, merge = _common_fields(projector), projector.integer("spatial_merge_size", 2)
    row_pixels = (merge * fields["patch_px"]) ** 2
    vision = VisionConfig(
        **fields,
        image_token_id=_vocabulary(text).index(PAD_TOKEN),
        merge=merge,
        temporal_patch=2,
        min_pixels=projector.integer("image_min_pixels", LEAST_TOKENS * row_pixels),
        max_pixels=projector.integer("image_max_pixels", MOST_TOKENS * row_pixels),
        rope_theta=ROPE_THETA,
        mrope_section=_mrope_section(text),
        **own,
    )
    if not max(vision.min_pixels, row_pixels) <= vision.max_pixels:
        raise BadFileError(f"images of {vision.min_pixels} to {vision.max_pixels} pixels")
    kernel = _tensor_shape(projector, PATCHES, 4)[2:]
    merged = _tensor_shape(projector, MERGED, 2)[1]
    if kernel != (vision.patch_px, vision.patch_px) or merged != vision.merged_features:
        raise BadFileError(
            f"{PATCHES} is of {kernel} pixels and {MERGED} of {merged} numbers, and the metadata "
            f"declare patches of {vision.patch_px} pixels and {vision.merged_features} numbers"
        )
    return vision


def _mrope_section(text: GGUFKeys) -> tuple[int, int, int]:
    """A fourth number is llama.cpp's padding."""
    sections = text.metadata[f"{text.architecture}.{SECTIONS}"]
    if not isinstance(sections, list) or len(sections) < AXES or any(sections[AXES:]):
        raise BadFileError(f"{text.architecture}.{SECTIONS} is {sections!r}, not three numbers")
    time, height, width = (int(size) for size in sections[:AXES])
    return time, height, width


def find_soft_token(text: GGUFKeys) -> tuple[int, str] | None:
    """Gemma 3's token for image rows; converters may cut it off: then it is the last unused one."""
    tokens = _vocabulary(text)
    if SOFT_TOKEN in tokens:
        return tokens.index(SOFT_TOKEN), SOFT_TOKEN
    unused = [i for i, token in enumerate(tokens) if _UNUSED.fullmatch(str(token))]
    return (unused[-1], str(tokens[unused[-1]])) if unused else None


def _read_siglip(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    _check_computed(projector, "use_gelu")
    token = find_soft_token(text)
    assert token is not None, "it was checked"
    fields = _common_fields(projector)
    # Earlier converters called an MLP's projections by each other's names.
    outputs, inputs = _tensor_shape(projector, "v.blk.0.ffn_down.weight", 2)
    merge = projector.integer("projector.scale_factor", 4)
    square = square_fields(projector.integer("image_size"), fields["patch_px"], merge)
    vision = VisionConfig(
        **fields | square,
        image_token_id=token[0],
        text=soft_text(token[1]),
        has_swapped_mlp_names=inputs == fields["hidden_size"] != outputs,
    )
    _check_square(projector, vision)
    return vision


def _read_idefics3(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    """Files that name no longest side do not cut images into tiles."""
    _check_activation(projector, "use_gelu")
    fields = _common_fields(projector)
    merge = projector.integer("projector.scale_factor", 2)
    fields |= tile_fields(projector.integer("image_size"), fields["patch_px"], merge)
    if (longest_px := projector.find("preproc_image_size")) is not None:
        if longest_px > LONGEST_SIDE_PX:
            raise BadFileError(f"images are scaled to {longest_px} pixels, over {LONGEST_SIDE_PX}")
        fields |= {"division": "tiles", "max_pixels": longest_px**2}
    vision = VisionConfig(
        **fields,
        image_token_id=_vocabulary(text).index(TILE_TOKEN),
        norm_eps=projector.number(NORM_EPS_KEY, NORM_EPS),
    )
    _check_square(projector, vision)
    return vision


def _read_pixtral(projector: GGUFKeys, text: GGUFKeys) -> VisionConfig:
    is_silu = projector.metadata.get("clip.use_silu") is True
    if not is_silu:
        _check_activation(projector, "use_gelu")
    fields = _common_fields(projector)
    merge = projector.integer("spatial_merge_size", 1)
    vision = VisionConfig(
        **fields
        | row_fields(projector.integer("image_size"), fields["patch_px"], merge)
        | {"norm_eps": projector.number(NORM_EPS_KEY, PIXTRAL_EPS)},
        image_token_id=_vocabulary(text).index(ROW_TOKEN),
        rope_theta=ROPE_THETA,
        activation="silu" if is_silu else "gelu",
        merger_eps=text.number("attention.layer_norm_rms_epsilon", PIXTRAL_EPS),
        has_projector_bias=projector.has_tensor("mm.1.bias"),
    )
    if (kernel := _tensor_shape(projector, PATCHES, 4)[2:]) != (vision.patch_px, vision.patch_px):
        raise BadFileError(
            f"{PATCHES} is of {kernel} pixels, and the metadata declare patches of "
            f"{vision.patch_px} pixels"
        )
    return vision


READERS: dict[str, Callable[[GGUFKeys, GGUFKeys], VisionConfig]] = {
    QWEN2_5_PROJECTOR: _read_qwen2_5,
    QWEN3_PROJECTOR: _read_qwen3,
    GEMMA3_PROJECTOR: _read_siglip,
    IDEFICS3_PROJECTOR: _read_idefics3,
    PIXTRAL_PROJECTOR: _read_pixtral,
}
"""Keys are values of ``clip.projector_type``."""


def _common_fields(projector: GGUFKeys) -> dict[str, Any]:
    return {
        "patch_px": projector.integer("patch_size"),
        "num_channels": _tensor_shape(projector, PATCHES, 4)[1],
        "depth": projector.integer("block_count"),
        "hidden_size": projector.integer("embedding_length"),
        "intermediate_size": projector.integer("feed_forward_length"),
        "num_heads": projector.integer("attention.head_count"),
        "out_hidden_size": projector.integer("projection_dim"),
        "image_mean": _channels(projector, "image_mean"),
        "image_std": _channels(projector, "image_std"),
    }


def _check_computed(projector: GGUFKeys, activation: str) -> None:
    _check_activation(projector, activation)
    eps = projector.number(NORM_EPS_KEY, NORM_EPS)
    if not math.isclose(eps, NORM_EPS, rel_tol=1e-3):
        raise BadFileError(f"{SECTION}.{NORM_EPS_KEY} is {eps:g}, not {NORM_EPS:g}")


def _check_activation(projector: GGUFKeys, activation: str) -> None:
    if projector.metadata.get(f"clip.{activation}") is not True:
        raise BadFileError(f"clip.{activation}, the tower's activation, is not true")


def _check_square(projector: GGUFKeys, vision: VisionConfig) -> None:
    kernel = _tensor_shape(projector, PATCHES, 4)[2:]
    num_positions = _tensor_shape(projector, POSITIONS, 2)[0]
    if kernel != (vision.patch_px, vision.patch_px) or (
        num_positions != vision.num_position_embeddings
    ):
        raise BadFileError(
            f"{PATCHES} is of {kernel} pixels and {POSITIONS} of {num_positions} patches, and the "
            f"metadata declare {vision.num_position_embeddings} patches of {vision.patch_px} pixels"
        )


def _tensor_shape(projector: GGUFKeys, name: str, num_axes: int) -> tuple[int, ...]:
    shape = projector.shapes.get(name)
    if shape is None:
        raise BadFileError(f"the mmproj file lacks the tensor {name}")
    if len(shape) != num_axes:
        raise BadFileError(f"{name} has {len(shape)} axes, not {num_axes}")
    return shape


def _vocabulary(text: GGUFKeys) -> list[Any]:
    tokens = text.metadata.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, list) else []


def _channels(projector: GGUFKeys, key: str) -> tuple[float, ...]:
    values = projector.metadata.get(f"{SECTION}.{key}")
    if not isinstance(values, list) or not values:
        raise BadFileError(f"the mmproj file's metadata lack {SECTION}.{key}")
    return tuple(float(value) for value in values)
