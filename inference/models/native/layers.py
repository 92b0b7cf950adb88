"""A layer's packed weights, and the struct that the native decoder reads them by."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.models.experts_config import ExpertsConfig, Scoring
from inference.models.native.packing import Format, PackedLinear
from inference.models.native.structs import (
    CExperts,
    CLayer,
    CProjection,
    Projection,
    linear_struct,
    pointer,
    projection_struct,
)

SCORINGS: dict[Scoring, int] = {"softmax": 0, "sigmoid": 1, "softmax_of_chosen": 2}
"""``Scoring`` of model.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeExperts:
    """``router`` float32: an output for each expert, and one for the shared expert's gate where it
    has one. ``gate_up`` and ``down`` by expert, the shared one last."""

    config: ExpertsConfig
    router: PackedLinear
    gate_up: Sequence[Projection]
    down: Sequence[Projection]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLayer:
    """Norms are float32; ``query_norm`` and ``key_norm`` are (head_dim,) where the family has
    them."""

    qkv: Projection
    output: Projection
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: Projection = ()
    down: Projection = ()
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    experts: NativeExperts | None = None
    """In place of ``gate_up`` and ``down``."""


def layer_struct(layer: NativeLayer) -> CLayer:
    experts = None if layer.experts is None else ctypes.pointer(_experts_struct(layer.experts))
    return CLayer(
        qkv=projection_struct(layer.qkv),
        output=projection_struct(layer.output),
        gate_up=projection_struct(layer.gate_up),
        down=projection_struct(layer.down),
        attention_norm=pointer(layer.attention_norm, torch.float32),
        mlp_norm=pointer(layer.mlp_norm, torch.float32),
        query_norm=pointer(layer.query_norm, torch.float32),
        key_norm=pointer(layer.key_norm, torch.float32),
        experts=experts,
    )


def _experts_struct(experts: NativeExperts) -> CExperts:
    config = experts.config
    has_shared = config.shared_intermediate_size is not None
    num_all = config.num_experts + has_shared
    assert len(experts.gate_up) == len(experts.down) == num_all
    assert experts.router.format is Format.F32
    # The C side looks at the first to know what all of them read.
    chosen = experts.gate_up[: config.num_experts]
    assert len({tuple(part.format for part in parts) for parts in chosen}) == 1
    projections = CProjection * num_all
    return CExperts(
        num_experts=config.num_experts,
        per_token=config.experts_per_token,
        intermediate_size=max(config.intermediate_size, config.shared_intermediate_size or 0),
        scoring=SCORINGS[config.scoring],
        normalizes=config.normalizes,
        has_shared=has_shared,
        router=linear_struct(experts.router),
        gate_up=projections(*map(projection_struct, experts.gate_up)),
        down=projections(*map(projection_struct, experts.down)),
    )
