"""Divides a model over the devices of one host, or of several, for a load: in runs of whole layers,
on two devices at least. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet.placement.stages.devices import StageDevice
from fleet.placement.stages.layer_memory import LEAST_TOKENS, NUM_STATES, STAGE_BYTES
from fleet.placement.stages.planning import KV_TOKENS, Spread, plan_stages
from fleet.placement.stages.plans import Stage, StagePlan, StageRefusal
from inference.loading.costs.model_costs import ModelCosts

KV_TOKENS_TRIED = (KV_TOKENS, 4096, LEAST_TOKENS)
"""A division is wanted that has room for so many tokens of keys and values; with less room it is
for fewer."""


def divided(
    costs: ModelCosts,
    devices: Sequence[StageDevice],
    tokens: Sequence[int],
    spread: Spread = "host",
) -> StagePlan | StageRefusal:
    """The plan over devices of one neuron, or with ``spread`` fleet of several. ``tokens`` are
    numbers of tokens of keys and values, the most wanted first. A plan of one stage, on a device
    that cannot hold the model though its layers' estimate fits, is divided as well."""
    found: StagePlan | StageRefusal | None = None
    for kv_tokens in tokens:
        found = _divided(costs, list(devices), kv_tokens, spread)
        if isinstance(found, StagePlan):
            return found
    assert found is not None, "tokens are not empty"
    return found


def least_bytes(costs: ModelCosts, stage: Stage, kv_tokens: int) -> int:
    """What the stage needs on its device with keys and values of so many tokens."""
    layers = costs.layers[stage.first_layer : stage.last_layer]
    token_bytes = sum(layer.kv_token_bytes.on(stage.kind) for layer in layers)
    state_bytes = NUM_STATES * sum(layer.state_bytes for layer in layers)
    return stage.weight_bytes + stage.beside_bytes + state_bytes + kv_tokens * token_bytes


def _divided(
    costs: ModelCosts, devices: list[StageDevice], kv_tokens: int, spread: Spread
) -> StagePlan | StageRefusal:
    while True:
        plan = plan_stages(costs, devices, spread=spread, kv_tokens=kv_tokens)
        if not isinstance(plan, StagePlan) or len(plan.stages) > 1:
            return plan
        (only,) = plan.stages
        devices = [_without_a_layer(one, costs) if _is_of(one, only) else one for one in devices]


def _without_a_layer(device: StageDevice, costs: ModelCosts) -> StageDevice:
    """The device, with room for less than all layers."""
    most_bytes = costs.weight_bytes.on(device.kind) + STAGE_BYTES[device.kind]
    least_layer = min(
        layer.weight_bytes.on(device.kind) + layer.expert_bytes.on(device.kind)
        for layer in costs.layers
    )
    less_bytes = most_bytes + costs.step_bytes.on(device.kind) - max(1, least_layer)
    return replace(device, free_bytes=max(0, min(device.free_bytes - 1, less_bytes)))


def _is_of(device: StageDevice, stage: Stage) -> bool:
    return (device.neuron, device.name) == (stage.neuron, stage.device)
