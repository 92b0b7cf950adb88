"""A ``WeightSource`` that remembers which projection stacks which weights, so that an adapter's can
be found by a projection."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.models.stored import StoredWeight
from inference.models.weights import Embedding, Linear, WeightSource


class NamedWeights:
    def __init__(self, weights: WeightSource) -> None:
        self._weights = weights
        self.activation_dtype = weights.activation_dtype
        self.device = weights.device
        self.names: dict[int, tuple[str, ...]] = {}
        """By the ``id`` of each projection that was asked for, whoever holds which keeps it."""

    def tensor(self, name: str) -> torch.Tensor:
        return self._weights.tensor(name)

    def has(self, name: str) -> bool:
        return self._weights.has(name)

    def linear(self, *names: str) -> Linear:
        linear = self._weights.linear(*names)
        self.names[id(linear)] = names
        return linear

    def embedding(self, name: str) -> Embedding:
        return self._weights.embedding(name)

    def dense(self, name: str) -> torch.Tensor:
        return self._weights.dense(name)

    def stored(self, name: str) -> StoredWeight:
        return self._weights.stored(name)

    def stored_parts(self, *names: str) -> Sequence[StoredWeight]:
        return self._weights.stored_parts(*names)

    def all_tensors(self) -> dict[str, torch.Tensor]:
        return self._weights.all_tensors()

    def report(self) -> str:
        return self._weights.report()
