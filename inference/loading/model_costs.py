"""Costs of a model's parts on each kind of device, as plain data for plans, and packed as they
travel between hosts and are stored. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from inference.protocol.load_report import (
    MAX_KINDS,
    MAX_LAYERS,
    KindBytes,
    LayerCost,
    OuterCosts,
    PackedCosts,
)

Kind = Literal["cpu", "cuda"]


class ModelCosts(OuterCosts, frozen=True, kw_only=True):
    layers: tuple[LayerCost, ...]

    @property
    def weight_bytes(self) -> KindBytes:
        total = self.outer_bytes
        for layer in self.layers:
            total = total + layer.weight_bytes + layer.expert_bytes
        return total


def packed(costs: ModelCosts) -> PackedCosts:
    kinds = {layer: index for index, layer in enumerate(dict.fromkeys(costs.layers))}
    return PackedCosts(
        **msgspec.structs.asdict(costs)
        | {"kinds": list(kinds), "layers": [kinds[layer] for layer in costs.layers]}
    )


def unpacked(given: PackedCosts) -> ModelCosts:
    """Raises ``ValueError`` for costs that no model has: they come from other hosts."""
    if not 0 < len(given.layers) <= MAX_LAYERS or len(given.kinds) > MAX_KINDS:
        raise ValueError(f"{len(given.layers)} layers of {len(given.kinds)} kinds")
    if any(not 0 <= index < len(given.kinds) for index in given.layers):
        raise ValueError("a layer is of no kind")
    numbers = _numbers(msgspec.to_builtins(given))
    if any(number < 0 for number in numbers) or not 0 < given.active_share <= 1:
        raise ValueError("a cost is negative, or the active share is not in (0, 1]")
    fields = msgspec.structs.asdict(given)
    kinds = fields.pop("kinds")
    return ModelCosts(**fields | {"layers": tuple(kinds[index] for index in given.layers)})


def _numbers(values: Any) -> Iterator[float]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, dict | list):
            yield from _numbers(value)
        else:
            yield value
