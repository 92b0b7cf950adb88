"""An adapter as the native decoder reads it: low_rank.h's structs, and the panels behind them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from inference.models.adapter import AdapterWeights, LowRank, check_known
from inference.models.native.packing import LANES, pack_f32

MAX_ADAPTED_PARTS = 4
"""``kMaxAdaptedParts`` of low_rank.h."""
PROJECTIONS_OF_LAYER = 4
"""``kNumAdaptedKinds``: qkv, output, gate_up, down."""


class CLowRank(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("first_output", ctypes.c_int32),
        ("out_features", ctypes.c_int32),
        ("is_narrow", ctypes.c_int32),
        ("down", ctypes.c_void_p),
        ("up", ctypes.c_void_p),
    ]


class CAdaptedProjection(ctypes.Structure):
    _fields_ = [("num_parts", ctypes.c_int32), ("parts", CLowRank * MAX_ADAPTED_PARTS)]


class CAdapter(ctypes.Structure):
    _fields_ = [
        ("inner_width", ctypes.c_int32),
        ("projections", ctypes.POINTER(CAdaptedProjection)),
    ]


@dataclass(frozen=True, slots=True)
class NativeAdapter:
    struct: CAdapter
    inner_width: int
    """Numbers of a row between down and up, of the widest projection."""
    alive: Sequence[object]
    """What the struct points at."""


def native_adapter(
    weights: AdapterWeights,
    layers: Sequence[Sequence[Sequence[tuple[str, int]]]],
    *,
    is_narrow: bool,
) -> NativeAdapter:
    """``layers``: of each layer's four projections the names and numbers of outputs of the weights
    that it stacks. ``is_narrow``: panels are bfloat16, which is what files of that dtype hold and
    far finer than quantised weights are; else float32."""
    check_known(weights, (name for layer in layers for names in layer for name, _ in names))
    alive: list[torch.Tensor] = []
    projections = (CAdaptedProjection * (len(layers) * PROJECTIONS_OF_LAYER))()
    inner_width = 0
    stacked = [names for layer in layers for names in layer]
    for at, names in enumerate(stacked):
        parts = _parts(weights.modules, names, alive, is_narrow=is_narrow)
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
    *,
    is_narrow: bool,
) -> list[CLowRank]:
    parts = []
    first_output = 0
    for name, out_features in names:
        if (module := modules.get(name)) is not None:
            down, up = (_panels(t, is_narrow) for t in (module.down, module.scaled_up))
            alive += down, up
            parts.append(
                CLowRank(
                    rank=len(module.down),
                    first_output=first_output,
                    out_features=out_features,
                    is_narrow=is_narrow,
                    down=down.data_ptr(),
                    up=up.data_ptr(),
                )
            )
        first_output += out_features
    return parts


def _panels(matrix: torch.Tensor, is_narrow: bool) -> torch.Tensor:
    panels = pack_f32(matrix)
    return panels.to(torch.bfloat16) if is_narrow else panels


def adapter_pointers(
    adapters: Sequence[NativeAdapter | None],
) -> tuple[ctypes.Array[ctypes.c_void_p], int]:
    """One for each sequence, and the widest's ``inner_width``."""
    addresses = [None if a is None else ctypes.addressof(a.struct) for a in adapters]
    width = max((a.inner_width for a in adapters if a is not None), default=0)
    return (ctypes.c_void_p * len(addresses))(*addresses), width
