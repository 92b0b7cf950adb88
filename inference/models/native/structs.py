"""Fills the C++ headers' structs, which point at tensors and keep none alive. The C++ side indexes
without looking: the size of whatever a struct points at is checked here, dtype and layout included.
The C++ side itself reports how many bytes a packed weight takes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from inference.models.errors import UnfitWeightsError
from inference.models.native.library import CONSTANTS, STRUCTS
from inference.models.native.packing import SUPER_BLOCK_FORMATS, Format, PackedLinear
from inference.models.step_input import Ints
from inference.models.stored_weights import GROUP_FEATURES, SUPER_BLOCK_FEATURES

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

Shape = tuple[int, ...]


class Part:
    """A struct's fields. Tensors become float32; ``None`` is null or zero."""

    def __init__(
        self,
        kind: type[ctypes.Structure],
        shapes: Mapping[str, Any],
        *sources: object,
        **given: object,
    ) -> None:
        """``shapes``: what is read of each tensor, (out_features, in_features) of a weight.
        ``sources`` have the fields that are not ``given`` as attributes; without any those are
        null."""
        self.kind, self.shapes, self._sources = kind, shapes, sources
        self.given = {
            name: value.float().contiguous() if isinstance(value, torch.Tensor) else value
            for name, value in given.items()
        }

    def value(self, name: str) -> object:
        if name in self.given or not self._sources:
            return self.given.get(name)
        return getattr(next(each for each in self._sources if hasattr(each, name)), name)


def norm_part(hidden_size: int, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Part:
    shapes = dict.fromkeys(("weight", "bias"), (hidden_size,))
    return Part(CNorm, shapes, weight=weight, bias=bias)


def fill(part: Part, library: ctypes.CDLL, name: str) -> ctypes.Structure:
    """``library``: its functions are declared. Raises ``UnfitWeightsError``, which names the field
    after ``name``."""
    struct = part.kind()
    for field, kind, *_ in part.kind._fields_:
        if (value := part.value(field)) is not None:
            given = part.shapes.get(field), library, f"{name} {field}"
            setattr(struct, field, _converted(value, kind, *given))
    return struct


def _converted(value: Any, kind: Any, shape: Any, library: ctypes.CDLL, name: str) -> object:
    if isinstance(value, Part):
        struct = fill(value, library, name)
        return struct if issubclass(kind, ctypes.Structure) else ctypes.pointer(struct)
    if isinstance(value, torch.Tensor):
        return _vector(value, shape, name)
    if isinstance(value, PackedLinear):
        return _checked_linear(value, shape, library, name)
    if kind is CProjection:
        return _projection(value, shape, library, name)
    if not isinstance(value, list):
        return value
    # A pointer at as many structs.
    items = zip(value, shape or [None] * len(value), strict=True)
    each = [
        _converted(one, kind._type_, of_one, library, f"{name} {index}")
        for index, (one, of_one) in enumerate(items)
    ]
    return (kind._type_ * len(each))(*each)


def _vector(tensor: torch.Tensor, shape: Shape, name: str) -> int | None:
    if tuple(tensor.shape) != shape:
        raise UnfitWeightsError(f"{name} is {tuple(tensor.shape)}; {shape} are read")
    return pointer(tensor, torch.float32)


def _projection(
    parts: Projection, shape: Shape, library: ctypes.CDLL, name: str
) -> ctypes.Structure:
    total = sum(part.out_features for part in parts)
    if not 1 <= len(parts) <= MAX_PARTS or total != shape[0]:
        raise UnfitWeightsError(
            f"{name} has {len(parts)} parts with {total} outputs; {shape[0]} are read"
        )
    structs = [
        _checked_linear(part, (part.out_features, shape[1]), library, name) for part in parts
    ]
    return CProjection(num_parts=len(parts), parts=tuple(structs))


def _checked_linear(
    packed: PackedLinear, shape: Shape, library: ctypes.CDLL, name: str
) -> ctypes.Structure:
    if (found := (packed.out_features, packed.in_features)) != shape:
        raise UnfitWeightsError(f"{name} is {found}; {shape} are read")
    if packed.bias is not None:
        _vector(packed.bias, shape[:1], f"{name} bias")
    struct = linear_struct(packed)
    needed = library.helexa_linear_bytes(ctypes.byref(struct))
    if packed.num_bytes != needed:
        raise UnfitWeightsError(f"{name} has {packed.num_bytes} bytes; {needed} are read")
    return struct


def linear_struct(packed: PackedLinear) -> ctypes.Structure:
    assert packed.in_features % _features_multiple(packed.format) == 0
    assert packed.panels.is_contiguous()
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
