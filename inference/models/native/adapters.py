"""An adapter as the native decoder reads it: low_rank.h's structs, and the panels behind them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from inference.models.adapter import AdapterWeights, LowRank, check_known
from inference.models.native.packing import LANES, pack_f32
from inference.models.native.structs import INT, POINTER, fields, pointer

MAX_ADAPTED_PARTS = 4
"""``kMaxAdaptedParts`` of low_rank.h."""
LARGEST_CODE = 127
PROJECTIONS_OF_LAYER = 5
"""``kNumAdaptedKinds``: qkv, output, gate_up, down."""


class LowRankFormat(IntEnum):
    """``LowRankFormat`` of low_rank.h."""

    FLOAT = 0
    BFLOAT16 = 1
    INT8 = 2


DTYPES = {
    LowRankFormat.FLOAT: torch.float32,
    LowRankFormat.BFLOAT16: torch.bfloat16,
    LowRankFormat.INT8: torch.int8,
}


class CLowRank(ctypes.Structure):
    _fields_ = [
        *fields(INT, "rank first_output out_features format"),
        *fields(POINTER, "down up down_scales up_scales"),
    ]


class CAdaptedProjection(ctypes.Structure):
    _fields_ = [("num_parts", INT), ("parts", CLowRank * MAX_ADAPTED_PARTS)]


class CAdapter(ctypes.Structure):
    _fields_ = [
        ("inner_width", INT),
        ("projections", ctypes.POINTER(CAdaptedProjection)),
    ]


@dataclass(frozen=True, slots=True)
class NativeAdapter:
    struct: CAdapter
    inner_width: int
    """Numbers of a row between down and up, of the widest projection."""
    alive: Sequence[object]
    """The tensors and arrays that the struct points at."""


def native_adapter(
    weights: AdapterWeights,
    layers: Sequence[Sequence[Sequence[tuple[str, int]]]],
    *,
    format: LowRankFormat,
) -> NativeAdapter:
    """``layers``: of each layer's five projections the names and numbers of outputs of the weights
    that it stacks."""
    check_known(weights, (name for layer in layers for names in layer for name, _ in names))
    alive: list[torch.Tensor] = []
    projections = (CAdaptedProjection * (len(layers) * PROJECTIONS_OF_LAYER))()
    inner_width = 0
    stacked = [names for layer in layers for names in layer]
    for at, names in enumerate(stacked):
        parts = _parts(weights.modules, names, alive, format)
        projections[at] = CAdaptedProjection(num_parts=len(parts), parts=tuple(parts))
        inner_width = max(inner_width, sum(-(-part.rank // LANES) * LANES for part in parts))
    struct = CAdapter(
        inner_width=inner_width,
        projections=ctypes.cast(projections, ctypes.POINTER(CAdaptedProjection)),
    )
    return NativeAdapter(struct, inner_width, [*alive, projections])


def _parts(
    modules: Mapping[str, LowRank],
    names: Sequence[tuple[str, int]],
    alive: list[torch.Tensor],
    format: LowRankFormat,
) -> list[CLowRank]:
    parts = []
    first_output = 0
    for name, out_features in names:
        if (module := modules.get(name)) is not None:
            down, down_scales = _panels(module.down, 1.0, format)
            up, up_scales = _panels(module.up, module.scale, format)
            alive += down, up, down_scales, up_scales
            parts.append(
                CLowRank(
                    rank=len(module.down),
                    first_output=first_output,
                    out_features=out_features,
                    format=format,
                    down=down.data_ptr(),
                    up=up.data_ptr(),
                    down_scales=pointer(down_scales, torch.float32),
                    up_scales=pointer(up_scales, torch.float32),
                )
            )
        first_output += out_features
    return parts


def _panels(
    matrix: torch.Tensor, scale: float, format: LowRankFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, in) -> its panels, and float32 factors, one an output."""
    values, scales = matrix.float(), torch.full((len(matrix),), scale)
    if format is LowRankFormat.INT8:
        largest = values.abs().amax(dim=1)
        steps = torch.where(largest == 0, 1.0, largest / LARGEST_CODE)
        values, scales = (values / steps.unsqueeze(1)).round(), scales * steps
    panels = pack_f32(values).to(DTYPES[format])
    return panels, torch.nn.functional.pad(scales, (0, -len(scales) % LANES))


def adapter_pointers(
    adapters: Sequence[NativeAdapter | None],
) -> tuple[ctypes.Array[ctypes.c_void_p], int]:
    """One for each sequence, and the widest's ``inner_width``."""
    addresses = [None if a is None else ctypes.addressof(a.struct) for a in adapters]
    width = max((a.inner_width for a in adapters if a is not None), default=0)
    return (ctypes.c_void_p * len(addresses))(*addresses), width
