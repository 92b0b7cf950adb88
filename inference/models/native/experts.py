"""A layer's experts, packed for the native decoder."""

from __future__ import annotations

import torch

from inference.models.config import ModelConfig
from inference.models.experts_loading import expert_prefixes
from inference.models.native.layers import NativeExperts
from inference.models.native.packing import pack
from inference.models.native.structs import Projection
from inference.models.stored import DenseWeight
from inference.models.weights import WeightSource


def load_experts(config: ModelConfig, weights: WeightSource, prefix: str) -> NativeExperts:
    """The mixture at ``prefix``, as ``model.layers.0.mlp``."""
    experts = config.experts
    assert experts is not None, "its layers are sparse"

    def projection(*names: str) -> Projection:
        return [pack(stored) for stored in weights.stored_parts(*names)]

    router = weights.tensor(f"{prefix}.gate.weight").float()
    prefixes = list(expert_prefixes(experts, prefix))
    if experts.shared_intermediate_size is not None:
        prefixes.append(f"{prefix}.shared_expert")
        if experts.gates_shared:
            gate = weights.tensor(f"{prefix}.shared_expert_gate.weight").float()
            router = torch.cat([router, gate.view(1, -1)])
    return NativeExperts(
        config=experts,
        router=pack(DenseWeight(weight=router)),
        gate_up=[projection(f"{own}.gate_proj", f"{own}.up_proj") for own in prefixes],
        down=[projection(f"{own}.down_proj") for own in prefixes],
    )
