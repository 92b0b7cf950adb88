"""Fills the C++ headers' structs, which point at tensors and keep none alive."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch

from inference.models.native.library import CONSTANTS, STRUCTS
from inference.models.native.packing import SUPER_BLOCK_FORMATS, Format, PackedLinear
from inference.models.step_input import Ints
from inference.models.stored_weights import GROUP_FEATURES, SUPER_BLOCK_FEATURES

Struct = TypeVar("Struct", bound=ctypes.Structure)
MAX_PARTS = CONSTANTS["kMaxParts"]
CLinear, CProjection, CExperts = STRUCTS["Linear"], STRUCTS["Projection"], STRUCTS["Experts"]
CNorm, CJoin, CLayer, CModel = (STRUCTS[name] for name in ("Norm", "Join", "Layer", "Model"))
CDeltaNet, CShortConv, CMamba, CLatent = (
    STRUCTS[name] for name in ("DeltaNet", "ShortConv", "Mamba", "Latent")
)
CImages, CBatch = STRUCTS["Images"], STRUCTS["Batch"]


class Draw(ctypes.Structure):
    """``top_k`` 0: of all tokens."""

    _fields_ = STRUCTS["Draw"]._fields_


Projection = Sequence[PackedLinear]
"""Up to ``MAX_PARTS`` weights of one input, in different formats; outputs one after the other."""


def struct_of(kind: type[Struct], *sources: object, **given: object) -> Struct:
    """A struct whose fields are ``given``, or the attributes of their names that the first source
    with one has. ``None`` is null or zero."""
    struct = kind()
    for name, *_ in kind._fields_:
        if name in given:
            value = given[name]
        else:
            value = getattr(next(each for each in sources if hasattr(each, name)), name)
        if value is not None:
            setattr(struct, name, value)
    return struct


def linear_struct(packed: PackedLinear | None) -> ctypes.Structure:
    if packed is None:
        return CLinear()
    assert packed.in_features % _features_multiple(packed.format) == 0
    book = packed.codebook
    return CLinear(
        format=packed.format,
        in_features=packed.in_features,
        out_features=packed.out_features,
        panels=packed.panels.data_ptr(),
        bias=pointer(packed.bias, torch.float32),
        codebook=() if book is None else (book.values, book.unit),
    )


def _features_multiple(format: Format) -> int:
    """The C side reads whole groups, or whole super-blocks."""
    if format is Format.F32:
        return 1
    is_super = format in (*SUPER_BLOCK_FORMATS.values(), Format.T3K, Format.T4K)
    return SUPER_BLOCK_FEATURES if is_super else GROUP_FEATURES


def pointer(tensor: torch.Tensor | None, dtype: torch.dtype) -> int | None:
    """The C side indexes blindly, so the dtype and the layout are checked here."""
    if tensor is None:
        return None
    assert tensor.dtype == dtype and tensor.is_contiguous() and tensor.device.type == "cpu"
    return tensor.data_ptr()


def address(array: Ints | None, *, has_contiguous_rows: bool = False) -> int | None:
    """Checked as in ``pointer``. ``has_contiguous_rows``: rows may have a stride."""
    if array is None:
        return None
    dense = array[0] if has_contiguous_rows else array
    assert array.dtype == np.int32 and dense.flags.c_contiguous
    found: int = array.__array_interface__["data"][0]
    return found
