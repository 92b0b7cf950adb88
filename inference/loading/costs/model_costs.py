"""Costs of a model's parts on each kind of device: plain data for plans, and packed as it
travels from the neuron that has the files, and is stored. Pure.

    first stage only     table, head, norms, tower       ``outer_bytes``
    each layer           mixer, MLP, router │ experts     ``LayerCost``
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from inference.protocol.load_progress import (
    MAX_KINDS,
    MAX_LAYERS,
    PackedBytes,
    PackedCosts,
    PackedLayer,
)

Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class KindBytes:
    """Bytes of one thing on either kind of device: formats are packed differently there."""

    cpu: int = 0
    cuda: int = 0

    def on(self, kind: Kind) -> int:
        return self.cpu if kind == "cpu" else self.cuda

    def __add__(self, other: KindBytes) -> KindBytes:
        return KindBytes(self.cpu + other.cpu, self.cuda + other.cuda)


NOTHING = KindBytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One layer. Routed experts are counted apart from the rest of its weights."""

    weight_bytes: KindBytes
    expert_bytes: KindBytes = NOTHING
    num_weights: int = 0
    """Elements that each row is multiplied with."""
    num_expert_weights: int = 0
    kv_token_bytes: KindBytes = NOTHING
    state_bytes: int = 0
    """The bytes of one sequence's state, on either kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    layers: tuple[LayerCost, ...]
    outer_bytes: KindBytes
    """Table of tokens, output head, last norm and tower: the first stage has them."""
    head_bytes: KindBytes
    """Bytes of that which each step reads: the head, or the table that it is tied to."""
    num_head_weights: int
    hidden_size: int
    active_share: float = 1.0
    """Share of the routed experts that one row goes through."""
    step_bytes: KindBytes = NOTHING
    """Activations of the largest step, on each stage."""
    context_tokens: int = 0

    @property
    def weight_bytes(self) -> KindBytes:
        total = self.outer_bytes
        for layer in self.layers:
            total = total + layer.weight_bytes + layer.expert_bytes
        return total


def packed(costs: ModelCosts) -> PackedCosts:
    kinds = {layer: index for index, layer in enumerate(dict.fromkeys(costs.layers))}
    return PackedCosts(
        kinds=[_packed_layer(layer) for layer in kinds],
        layers=[kinds[layer] for layer in costs.layers],
        outer_bytes=_packed_bytes(costs.outer_bytes),
        head_bytes=_packed_bytes(costs.head_bytes),
        num_head_weights=costs.num_head_weights,
        hidden_size=costs.hidden_size,
        active_share=costs.active_share,
        step_bytes=_packed_bytes(costs.step_bytes),
        context_tokens=costs.context_tokens,
    )


def unpacked(given: PackedCosts) -> ModelCosts:
    """Raises ``ValueError`` for costs that no model has: they come from other hosts."""
    if not 0 < len(given.layers) <= MAX_LAYERS or len(given.kinds) > MAX_KINDS:
        raise ValueError(f"{len(given.layers)} layers of {len(given.kinds)} kinds")
    if any(not 0 <= index < len(given.kinds) for index in given.layers):
        raise ValueError("a layer is of no kind")
    if any(number < 0 for number in _numbers(given)) or not 0 < given.active_share <= 1:
        raise ValueError("a cost is negative, or the active share is not in (0, 1]")
    kinds = [_layer(one) for one in given.kinds]
    return ModelCosts(
        layers=tuple(kinds[index] for index in given.layers),
        outer_bytes=_bytes(given.outer_bytes),
        head_bytes=_bytes(given.head_bytes),
        num_head_weights=given.num_head_weights,
        hidden_size=given.hidden_size,
        active_share=given.active_share,
        step_bytes=_bytes(given.step_bytes),
        context_tokens=given.context_tokens,
    )


def _numbers(given: PackedCosts) -> Iterator[int]:
    for layer in given.kinds:
        for each in (layer.weight_bytes, layer.expert_bytes, layer.kv_token_bytes):
            yield from (each.cpu, each.cuda)
        yield from (layer.num_weights, layer.num_expert_weights, layer.state_bytes)
    for each in (given.outer_bytes, given.head_bytes, given.step_bytes):
        yield from (each.cpu, each.cuda)
    yield from (given.num_head_weights, given.hidden_size, given.context_tokens)


def _packed_layer(layer: LayerCost) -> PackedLayer:
    return PackedLayer(
        weight_bytes=_packed_bytes(layer.weight_bytes),
        expert_bytes=_packed_bytes(layer.expert_bytes),
        num_weights=layer.num_weights,
        num_expert_weights=layer.num_expert_weights,
        kv_token_bytes=_packed_bytes(layer.kv_token_bytes),
        state_bytes=layer.state_bytes,
    )


def _layer(one: PackedLayer) -> LayerCost:
    return LayerCost(
        weight_bytes=_bytes(one.weight_bytes),
        expert_bytes=_bytes(one.expert_bytes),
        num_weights=one.num_weights,
        num_expert_weights=one.num_expert_weights,
        kv_token_bytes=_bytes(one.kv_token_bytes),
        state_bytes=one.state_bytes,
    )


def _packed_bytes(size: KindBytes) -> PackedBytes:
    return PackedBytes(size.cpu, size.cuda)


def _bytes(size: PackedBytes) -> KindBytes:
    return KindBytes(size.cpu, size.cuda)
