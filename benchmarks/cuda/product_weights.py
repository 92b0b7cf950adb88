"""Packed weights of random codes at the shapes of a model's projections, and what reading one takes
at least."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from benchmarks.cuda.shapes import weight_shape
from inference.models.config import ModelConfig
from inference.models.cuda.packed import PackedLinear
from inference.models.weights.stored import GroupedWeight, PackedWeight, SuperBlockWeight

Kind = Literal["q4", "q8", "q6", "q5"]
BITS: dict[Kind, int] = {"q4": 4, "q8": 8, "q6": 6, "q5": 6}
"""The kernels' bits of a code by kind: 4, 5 and 8 bits in groups of 32, and Q6_K in groups of
16."""
PROJECTIONS = {
    "q/k/v": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate/up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
    "head": ("lm_head",),
}
"""The weights that a decoder multiplies together, as its layers hold them."""
LAYER = ("q/k/v", "o", "gate/up", "down")
"""The products of one layer."""


@dataclass(frozen=True, slots=True)
class Shape:
    model: str
    projection: str
    out_features: int
    in_features: int

    def __str__(self) -> str:
        return f"{self.model} {self.projection} {self.out_features} x {self.in_features}"


def shapes_of(model: str, config: ModelConfig) -> list[Shape]:
    shapes = []
    for projection, names in PROJECTIONS.items():
        sizes = [weight_shape(config, name) for name in names]
        shapes.append(Shape(model, projection, sum(size[0] for size in sizes), sizes[0][1]))
    return shapes


def random_weight(
    kind: Kind, out_features: int, in_features: int, device: torch.device
) -> PackedWeight:
    shape, unit = (out_features, in_features), in_features**-0.5

    def codes(low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=dtype, device=device)

    if kind == "q6":
        scales = torch.randint(
            16, 64, (out_features, in_features // 16), dtype=torch.int8, device=device
        )
        supers = torch.full((out_features, in_features // 256), unit / 32 / 32, device=device)
        return SuperBlockWeight(
            bits=6, codes=codes(0, 64, torch.uint8), scales=scales, super_scales=supers.half()
        )
    scales = (torch.rand(out_features, in_features // 32, device=device) + 0.5) * unit
    if kind == "q8":
        return GroupedWeight(
            bits=8, codes=codes(-127, 128, torch.int8), scales=(scales / 128).half()
        )
    bits = 4 if kind == "q4" else 5
    half = 2 ** (bits - 1)
    scales = (scales / half).half()
    return GroupedWeight(
        bits=bits,
        codes=codes(0, 2**bits, torch.uint8),
        scales=scales,
        minimums=(0.5 - half) * scales,
    )


def packed_bytes(linear: PackedLinear) -> int:
    packed = linear.packed
    tensors = packed.words, packed.high_words, packed.scales, packed.row_scales
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def another(linear: PackedLinear) -> PackedLinear:
    """The same weight elsewhere in memory."""
    copied = object.__new__(PackedLinear)
    copied.__dict__.update(linear.__dict__)
    packed = linear.packed
    tensors: dict[str, Any] = {
        name: None if tensor is None else tensor.clone()
        for name in ("words", "high_words", "scales", "row_scales")
        for tensor in [getattr(packed, name)]
    }
    copied.packed = replace(packed, **tensors)
    return copied
