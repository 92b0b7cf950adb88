"""A ``WeightSource`` that asks another one for everything. Subclasses change single answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.models.layers.grouped_product import GroupedProduct
from inference.models.weights.lazy import LazyWeight
from inference.models.weights.stored import StoredWeight
from inference.models.weights.weight_source import Embedding, Linear, WeightSource


class ForwardedWeights:
    def __init__(self, weights: WeightSource) -> None:
        self._weights = weights
        self.activation_dtype = weights.activation_dtype
        self.device = weights.device

    def tensor(self, name: str) -> torch.Tensor:
        return self._weights.tensor(name)

    def has(self, name: str) -> bool:
        return self._weights.has(name)

    def linear(self, *names: str) -> Linear:
        return self._weights.linear(*names)

    def embedding(self, name: str) -> Embedding:
        return self._weights.embedding(name)

    def grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        return self._weights.grouped(experts)

    def stored(self, name: str) -> StoredWeight:
        return self._weights.stored(name)

    def stored_parts(self, *names: str) -> Sequence[LazyWeight]:
        return self._weights.stored_parts(*names)

    def all_tensors(self) -> dict[str, torch.Tensor]:
        return self._weights.all_tensors()

    def report(self) -> str:
        return self._weights.report()
