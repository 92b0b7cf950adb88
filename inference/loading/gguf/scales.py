"""Scales of whole tensors, which files of NVFP4 hold beside the weights: blocks are scaled by eight
bits, whose range is small.

    blk.0.ffn_up.weight        blocks
    blk.0.ffn_up.scale         one float32, or one for each expert of a stack
    blk.0.ffn_up.input_scale   of activations of four bits, which nothing computes with
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from inference.loading.gguf.codebooks import CODEBOOK_UNPACKERS
from inference.loading.gguf.header import TensorInfo
from inference.models.weights.stored import CodebookWeight, StoredWeight
from inference.protocol.load_errors import BadFileError, shape_in_words

WEIGHT, SCALE, INPUT_SCALE = ".weight", ".scale", ".input_scale"

Scales = npt.NDArray[np.float32]


def is_scale(name: str, names: Collection[str]) -> bool:
    """Whether the tensor ``name`` is a scale of another one. ``names``: of all."""
    stem, dot, kind = name.rpartition(".")
    return f"{dot}{kind}" in (SCALE, INPUT_SCALE) and stem + WEIGHT in names


def read_scales(tensors: Mapping[str, TensorInfo]) -> dict[str, Scales]:
    """Reads the scales by the names of their weights. Raises ``BadFileError``."""
    found: dict[str, Scales] = {}
    for name, info in tensors.items():
        if name.endswith(SCALE) and is_scale(name, tensors):
            weight = tensors[name.removesuffix(SCALE) + WEIGHT]
            _check(info, weight)
            found[weight.name] = np.fromfile(
                info.path, np.float32, info.num_elements, offset=info.offset
            )
    return found


def scaled(weight: StoredWeight, scale: float) -> StoredWeight:
    """``weight``: of a type with a table, whose unit takes the scale in."""
    assert isinstance(weight, CodebookWeight)
    book = weight.codebook
    return replace(weight, codebook=replace(book, unit=book.unit * scale))


def _check(info: TensorInfo, weight: TensorInfo) -> None:
    name = f"{info.path.name}: {info.name}"
    num_experts = weight.shape[0] if len(weight.shape) == 3 else 1
    if info.type != GGMLQuantizationType.F32 or info.num_elements not in (1, num_experts):
        raise BadFileError(
            f"{name} is {shape_in_words(info.shape)} in {info.type.name}; one F32 is read, or one "
            f"for each of {num_experts} experts"
        )
    if weight.type not in CODEBOOK_UNPACKERS:
        known = ", ".join(sorted(type.name for type in CODEBOOK_UNPACKERS))
        raise BadFileError(
            f"{name} is the scale of a weight of {weight.type.name}; scales are read of: {known}"
        )
