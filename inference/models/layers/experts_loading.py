"""Loads a layer's mixture of experts: one after the other on a CPU, stacked on a card."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import pad

from inference.models.config import ModelConfig
from inference.models.layer_configs import ExpertsConfig
from inference.models.layers.experts import (
    Experts,
    GatedExpert,
    GroupedExperts,
    LoopedExperts,
    SharedExpert,
    SparseMlp,
    gate_of,
)
from inference.models.layers.norms import TorchPointwise
from inference.models.weight_source import WeightSource

CHOICE_BIAS = "gate.e_score_correction_bias"


def load_sparse_mlp(config: ModelConfig, weights: WeightSource, index: int) -> SparseMlp:
    assert config.experts is not None, "its layers are sparse"
    return load_mixture(config.experts, weights, f"model.layers.{index}.mlp")


def load_mixture(config: ExpertsConfig, weights: WeightSource, prefix: str) -> SparseMlp:
    """The mixture at ``prefix``, as ``model.layers.0.mlp``. Each expert has names of its own:
    ``loading/weights/named_files.py`` cuts stacks up."""
    shared = None
    if config.shared_intermediate_size is not None:
        gate = None
        if config.gates_shared:
            gate = weights.tensor(f"{prefix}.shared_expert_gate.weight").view(1, -1)
        names = config.shared_gate_up, config.shared_down
        shared = SharedExpert(_expert(config, weights, f"{prefix}.shared_expert", *names), gate)
    experts: Experts
    if weights.device.type == "cpu":
        names = config.gate_up, "down_proj"
        prefixes = expert_prefixes(config, prefix)
        experts = LoopedExperts([_expert(config, weights, name, *names) for name in prefixes])
    else:
        experts = load_grouped(config, weights, prefix)
    router_bias = weights.tensor(f"{prefix}.gate.bias") if config.has_bias else None
    router = weights.tensor(f"{prefix}.gate.weight")
    choice_bias = None
    if config.has_choice_bias:  # ERNIE's files have it along two axes
        choice_bias = weights.tensor(f"{prefix}.{CHOICE_BIAS}").flatten()
    return SparseMlp(config, router, experts, shared, router_bias, choice_bias)


def expert_prefixes(config: ExpertsConfig, prefix: str) -> Iterator[str]:
    return (f"{prefix}.experts.{index}" for index in config.held_experts)


def _expert(
    config: ExpertsConfig,
    weights: WeightSource,
    prefix: str,
    gate_up_names: tuple[str, ...],
    down_name: str,
) -> GatedExpert:
    gate_up = weights.linear(*(f"{prefix}.{name}" for name in gate_up_names))
    down = weights.linear(f"{prefix}.{down_name}")
    gate = gate_of(config, TorchPointwise())
    return GatedExpert(
        gate_up, down, gate, has_bias=config.has_bias, weighs_inputs=config.weighs_inputs
    )


def load_grouped(config: ExpertsConfig, weights: WeightSource, prefix: str) -> GroupedExperts:
    """All experts of a layer side by side, as a card multiplies them."""
    prefixes = list(expert_prefixes(config, prefix))
    gate_up = weights.grouped([[f"{own}.{part}" for part in config.gate_up] for own in prefixes])
    down = weights.grouped([[f"{own}.down_proj"] for own in prefixes])
    gate = gate_of(config, TorchPointwise())
    biases = _load_biases(config, weights, prefix) if config.has_bias else None
    has_others = config.held is not None
    if biases is not None and has_others:
        biases = pad(biases[0], (0, 0, 0, 1)), pad(biases[1], (0, 0, 0, 1))
    return GroupedExperts(
        *(gate_up, down, gate, biases),
        weighs_inputs=config.weighs_inputs,
        has_others=has_others,
    )


def _load_biases(
    config: ExpertsConfig, weights: WeightSource, prefix: str
) -> tuple[torch.Tensor, torch.Tensor]:
    gate_ups, downs = [], []
    for name in expert_prefixes(config, prefix):
        both = [weights.tensor(f"{name}.{part}_proj.bias") for part in ("gate", "up")]
        gate_ups.append(torch.cat(both))
        downs.append(weights.tensor(f"{name}.down_proj.bias"))
    return torch.stack(gate_ups), torch.stack(downs)
