"""A layer's experts, packed for the native decoder."""

from __future__ import annotations

import torch

from inference.models.config import ModelConfig
from inference.models.layers.configs import ExpertsConfig
from inference.models.native.layers import NativeExperts
from inference.models.native.packer import Packer
from inference.models.native.packing import pack
from inference.models.native.structs import Projection
from inference.models.weights.experts_loading import CHOICE_BIAS, expert_prefixes
from inference.models.weights.stored import DenseWeight
from inference.models.weights.weight_source import WeightSource

SHARED = ".shared_expert"


def load_experts(
    config: ModelConfig,
    weights: WeightSource,
    prefix: str,
    packer: Packer,
) -> NativeExperts:
    """The mixture at ``prefix``, as ``model.layers.0.mlp``. Each expert is read and packed by one
    thread."""
    experts = config.experts
    assert experts is not None, "its layers are sparse"

    def expert(own: str, packer: Packer) -> tuple[Projection, Projection]:
        is_shared = own.endswith(SHARED)
        gate_up = experts.shared_gate_up if is_shared else experts.gate_up
        down = experts.shared_down if is_shared else "down_proj"
        parts = weights.stored_parts(*(f"{own}.{name}" for name in gate_up))
        return (
            [packer.pack(part) for part in parts],
            [packer.pack(part) for part in weights.stored_parts(f"{own}.{down}")],
        )

    router = weights.tensor(f"{prefix}.gate.weight").float()
    prefixes = list(expert_prefixes(experts, prefix))
    if experts.shared_intermediate_size is not None:
        prefixes.append(prefix + SHARED)
        if experts.gates_shared:
            gate = weights.tensor(f"{prefix}.shared_expert_gate.weight").float()
            router = torch.cat([router, gate.view(1, -1)])
    packed = packer.each(expert, prefixes)
    return NativeExperts(
        config=experts,
        router=pack(DenseWeight(weight=router)),
        gate_up=[gate_up for gate_up, _ in packed],
        down=[down for _, down in packed],
        choice_bias=_choice_bias(experts, weights, prefix),
    )


def _choice_bias(config: ExpertsConfig, weights: WeightSource, prefix: str) -> torch.Tensor | None:
    if not config.has_choice_bias:
        return None
    return weights.tensor(f"{prefix}.{CHOICE_BIAS}").float().flatten()
