"""A layer's experts, packed for the native decoder."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from inference.models.config import ModelConfig
from inference.models.layers.experts_config import ExpertsConfig
from inference.models.native.layers import NativeExperts
from inference.models.native.packing import pack
from inference.models.native.structs import Projection
from inference.models.weights.experts_loading import CHOICE_BIAS, expert_prefixes
from inference.models.weights.stored import DenseWeight
from inference.models.weights.weight_source import WeightSource
from inference.supervised_threads import SupervisedPool

SHARED = ".shared_expert"


def load_experts(
    config: ModelConfig,
    weights: WeightSource,
    prefix: str,
    library: ctypes.CDLL | None = None,
) -> NativeExperts:
    """The mixture at ``prefix``, as ``model.layers.0.mlp``. Experts are read and packed by several
    threads."""
    experts = config.experts
    assert experts is not None, "its layers are sparse"

    def projection(*names: str) -> Projection:
        return [pack(stored, library) for stored in weights.stored_parts(*names)]

    def expert(own: str) -> tuple[Projection, Projection]:
        is_shared = own.endswith(SHARED)
        gate_up = experts.shared_gate_up if is_shared else experts.gate_up
        down = experts.shared_down if is_shared else "down_proj"
        return projection(*(f"{own}.{name}" for name in gate_up)), projection(f"{own}.{down}")

    router = weights.tensor(f"{prefix}.gate.weight").float()
    prefixes = list(expert_prefixes(experts, prefix))
    if experts.shared_intermediate_size is not None:
        prefixes.append(prefix + SHARED)
        if experts.gates_shared:
            gate = weights.tensor(f"{prefix}.shared_expert_gate.weight").float()
            router = torch.cat([router, gate.view(1, -1)])
    packed = _in_threads(expert, prefixes)
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
    return weights.tensor(f"{prefix}.{CHOICE_BIAS}").float().contiguous()


def _in_threads(
    load: Callable[[str], tuple[Projection, Projection]], prefixes: Sequence[str]
) -> list[tuple[Projection, Projection]]:
    """Each of torch's threads has experts of its own, and torch none beside them: it would wait
    longer for its threads than they take for an expert."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with SupervisedPool(num_threads) as threads:
            return list(threads.map(load, prefixes))
    finally:
        torch.set_num_threads(num_threads)
