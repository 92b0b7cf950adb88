"""Builders of model costs and devices: sizes in GB."""

from __future__ import annotations

from fleet.placement.stages.devices import BY_KIND, NETWORK, Link, Speed, StageDevice
from inference.loading.costs.model_costs import Kind, KindBytes, LayerCost, ModelCosts

GB = 10**9


def both(num_bytes: float) -> KindBytes:
    return KindBytes(int(num_bytes), int(num_bytes))


def dense(gb: float, *, num_layers: int = 48, kv_token_bytes: int = 2048) -> ModelCosts:
    """A tenth of it is around the layers."""
    layer = LayerCost(
        weight_bytes=both(0.9 * gb * GB / num_layers),
        num_weights=int(0.9 * gb * GB / num_layers),
        kv_token_bytes=both(kv_token_bytes),
    )
    outer_bytes = 0.1 * gb * GB
    return ModelCosts(
        layers=(layer,) * num_layers,
        outer_bytes=both(outer_bytes),
        head_bytes=both(outer_bytes / 2),
        num_head_weights=int(outer_bytes / 2),
        hidden_size=5120,
        context_tokens=32_768,
    )


def mixture(gb: float, *, num_layers: int = 48, active_share: float = 1 / 16) -> ModelCosts:
    """A tenth of each layer is no expert's."""
    layer_bytes = 0.97 * gb * GB / num_layers
    layer = LayerCost(
        weight_bytes=both(0.1 * layer_bytes),
        expert_bytes=both(0.9 * layer_bytes),
        num_weights=int(0.1 * layer_bytes),
        num_expert_weights=int(0.9 * layer_bytes),
        kv_token_bytes=both(2048),
    )
    outer_bytes = 0.03 * gb * GB
    return ModelCosts(
        layers=(layer,) * num_layers,
        outer_bytes=both(outer_bytes),
        head_bytes=both(outer_bytes / 2),
        num_head_weights=int(outer_bytes / 2),
        hidden_size=4096,
        active_share=active_share,
        context_tokens=32_768,
    )


def device(
    neuron: str,
    name: str,
    gb: float,
    *,
    gb_per_s: float | None = None,
    tera_flops: float | None = None,
    link: Link = NETWORK,
) -> StageDevice:
    kind: Kind = "cpu" if name == "cpu" else "cuda"
    usual = BY_KIND[kind]
    return StageDevice(
        neuron=neuron,
        name=name,
        kind=kind,
        free_bytes=int(gb * GB),
        speed=Speed(
            usual.bytes_per_s if gb_per_s is None else gb_per_s * GB,
            usual.flops_per_s if tera_flops is None else tera_flops * 10**12,
        ),
        link=link,
    )
