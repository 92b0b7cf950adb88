"""A ``WeightSource`` of one stage: its layers are counted from its first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.models.layers.grouped_product import GroupedProduct
from inference.models.stages.layer_range import LayerRange
from inference.models.weights.lazy import LazyWeight
from inference.models.weights.stored import StoredWeight
from inference.models.weights.weight_source import Embedding, ForwardedWeights, Linear, WeightSource


class StageWeights(ForwardedWeights):
    def __init__(self, weights: WeightSource, layers: LayerRange) -> None:
        """``weights``: of the whole model, or at least of the stage."""
        super().__init__(weights)
        self._layers = layers

    def tensor(self, name: str) -> torch.Tensor:
        return super().tensor(self._layers.whole_name(name))

    def has(self, name: str) -> bool:
        return super().has(self._layers.whole_name(name))

    def linear(self, *names: str) -> Linear:
        return super().linear(*map(self._layers.whole_name, names))

    def embedding(self, name: str) -> Embedding:
        return super().embedding(self._layers.whole_name(name))

    def grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        whole_name = self._layers.whole_name
        return super().grouped([[whole_name(name) for name in names] for names in experts])

    def stored(self, name: str) -> StoredWeight:
        return super().stored(self._layers.whole_name(name))

    def stored_parts(self, *names: str) -> Sequence[LazyWeight]:
        return super().stored_parts(*map(self._layers.whole_name, names))
