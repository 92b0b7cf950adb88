"""An adapter as the native decoder reads it: low_rank.h's structs, and the panels behind them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from inference.models.adapter import AdapterWeights, LowRank, check_known
from inference.models.native.library import STRUCTS
from inference.models.native.packing import LANES, PackedLinear, pack
from inference.models.native.structs import linear_struct
from inference.models.stored_weights import GROUP_FEATURES, DenseWeight, GroupedWeight

CLowRank, CAdaptedProjection, CAdapter = (
    STRUCTS[name] for name in ("LowRank", "AdaptedProjection", "Adapter")
)
LARGEST_CODE = 127
PROJECTIONS_OF_LAYER = 5
"""``kNumAdaptedKinds``: qkv, output, gate_up, down, queries."""


@dataclass(frozen=True, slots=True)
class AdaptedStack:
    names: Sequence[tuple[str, int]]
    """(name, out_features)."""
    is_packed: bool
    """Whether any is read as codes, so that its input is quantised."""


@dataclass(frozen=True, slots=True)
class NativeAdapter:
    struct: ctypes.Structure
    inner_width: int
    """Most numbers of a row between down and up, in whole groups."""
    alive: Sequence[object]
    """Weights that the struct points at."""


def native_adapter(
    weights: AdapterWeights, layers: Sequence[Sequence[AdaptedStack]], library: ctypes.CDLL
) -> NativeAdapter:
    stacks = [stack for layer in layers for stack in layer]
    check_known(weights, (name for stack in stacks for name, _ in stack.names))
    alive: list[object] = []
    projections = (CAdaptedProjection * (len(layers) * PROJECTIONS_OF_LAYER))()
    inner_width = 0
    for at, stack in enumerate(stacks):
        parts = _parts(weights.modules, stack, alive, library)
        projections[at] = CAdaptedProjection(num_parts=len(parts), parts=tuple(parts))
        inner_width = max(inner_width, sum(part.up.in_features for part in parts))
    width = _whole(inner_width, GROUP_FEATURES)
    return NativeAdapter(CAdapter(projections), width, alive)


def _parts(
    modules: Mapping[str, LowRank],
    stack: AdaptedStack,
    alive: list[object],
    library: ctypes.CDLL,
) -> list[ctypes.Structure]:
    parts = []
    first_output = 0
    for name, out_features in stack.names:
        if (module := modules.get(name)) is not None:
            rank, scale = len(module.down), module.scale
            packed: list[PackedLinear] = []
            # Outputs of one are whole panels, inputs of the other whole groups.
            features = _whole(rank, GROUP_FEATURES if stack.is_packed else LANES)
            for matrix, padding in (
                (module.down.float(), (0, 0, 0, -rank % LANES)),
                (module.up.float(), (0, features - rank)),
            ):
                if stack.is_packed and (largest := float(matrix.abs().max())) > 0:
                    # A number under 6e-5 is no good scale of a group: it is a float16.
                    matrix, scale = matrix / largest, scale * largest
                stored = _in_codes if stack.is_packed else _dense
                packed.append(pack(stored(pad(matrix, padding)), library))
            alive += packed
            down, up = map(linear_struct, packed)
            parts.append(CLowRank(first_output=first_output, scale=scale, down=down, up=up))
        first_output += out_features
    return parts


def _whole(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _dense(matrix: torch.Tensor) -> DenseWeight:
    return DenseWeight(weight=matrix)


def _in_codes(matrix: torch.Tensor) -> GroupedWeight:
    groups = matrix.view(len(matrix), -1, GROUP_FEATURES)
    scales = (groups.abs().amax(dim=2) / LARGEST_CODE).half()
    steps = torch.where(scales == 0, 1.0, scales.float())
    codes = (groups / steps.unsqueeze(2)).round().clamp(-LARGEST_CODE, LARGEST_CODE)
    return GroupedWeight(bits=8, codes=codes.flatten(1).to(torch.int8), scales=scales)


def adapter_pointers(
    adapters: Sequence[NativeAdapter | None],
) -> tuple[ctypes.Array[ctypes.c_void_p], int]:
    addresses = [None if a is None else ctypes.addressof(a.struct) for a in adapters]
    width = max((a.inner_width for a in adapters if a is not None), default=0)
    return (ctypes.c_void_p * len(addresses))(*addresses), width
