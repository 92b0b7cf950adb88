"""Reads the metadata that the towers of mmproj files share. Keys and names:
gguf-py/gguf/constants.py of llama.cpp."""

from __future__ import annotations

import math
from typing import Any

from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.tower import NORM_EPS
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import BadFileError

SECTION = "clip.vision"
NORM_EPS_KEY = "attention.layer_norm_epsilon"
PATCHES, POSITIONS = "v.patch_embd.weight", "v.position_embd.weight"


def common_fields(projector: GGUFKeys) -> dict[str, Any]:
    """The fields of a ``VisionConfig`` that every tower's file declares. Raises
    ``BadFileError``."""
    return {
        "patch_px": projector.integer("patch_size"),
        "num_channels": tensor_shape(projector, PATCHES, 4)[1],
        "depth": projector.integer("block_count"),
        "hidden_size": projector.integer("embedding_length"),
        "intermediate_size": projector.integer("feed_forward_length"),
        "num_heads": projector.integer("attention.head_count"),
        "out_hidden_size": projector.integer("projection_dim"),
        "image_mean": _channels(projector, "image_mean"),
        "image_std": _channels(projector, "image_std"),
    }


def check_computed(projector: GGUFKeys, activation: str) -> None:
    """``activation``: a key. Raises ``BadFileError`` for what the tower would compute wrongly."""
    check_activation(projector, activation)
    eps = projector.number(NORM_EPS_KEY, NORM_EPS)
    if not math.isclose(eps, NORM_EPS, rel_tol=1e-3):
        raise BadFileError(f"{SECTION}.{NORM_EPS_KEY} is {eps:g}, not {NORM_EPS:g}")


def check_activation(projector: GGUFKeys, activation: str) -> None:
    """``activation``: a key. Raises ``BadFileError`` where the tower has another."""
    if projector.metadata.get(f"clip.{activation}") is not True:
        raise BadFileError(f"clip.{activation}, the tower's activation, is not true")


def check_square(projector: GGUFKeys, vision: VisionConfig) -> None:
    """Raises ``BadFileError`` where the tensors of a tower over squares of one size have other
    patches than the metadata."""
    kernel = tensor_shape(projector, PATCHES, 4)[2:]
    num_positions = tensor_shape(projector, POSITIONS, 2)[0]
    if kernel != (vision.patch_px, vision.patch_px) or (
        num_positions != vision.num_position_embeddings
    ):
        raise BadFileError(
            f"{PATCHES} is of {kernel} pixels and {POSITIONS} of {num_positions} patches, and the "
            f"metadata declare {vision.num_position_embeddings} patches of {vision.patch_px} pixels"
        )


def tensor_shape(projector: GGUFKeys, name: str, num_axes: int) -> tuple[int, ...]:
    """Raises ``BadFileError``."""
    shape = projector.shapes.get(name)
    if shape is None:
        raise BadFileError(f"the mmproj file lacks the tensor {name}")
    if len(shape) != num_axes:
        raise BadFileError(f"{name} has {len(shape)} axes, not {num_axes}")
    return shape


def vocabulary(text: GGUFKeys) -> list[Any]:
    """The text model's tokens; none where its metadata lack them."""
    tokens = text.metadata.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, list) else []


def _channels(projector: GGUFKeys, key: str) -> tuple[float, ...]:
    values = projector.metadata.get(f"{SECTION}.{key}")
    if not isinstance(values, list) or not values:
        raise BadFileError(f"the mmproj file's metadata lack {SECTION}.{key}")
    return tuple(float(value) for value in values)
