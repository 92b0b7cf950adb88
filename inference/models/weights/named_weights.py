"""A ``WeightSource`` that remembers which projection stacks which weights, so that an adapter's can
be found by a projection."""

from __future__ import annotations

from inference.models.weights.forwarded_weights import ForwardedWeights
from inference.models.weights.weight_source import Linear, WeightSource


class NamedWeights(ForwardedWeights):
    def __init__(self, weights: WeightSource) -> None:
        super().__init__(weights)
        self.names: dict[int, tuple[str, ...]] = {}
        """The weights' names of each projection that was asked for, by its ``id``: the caller keeps
        the projection alive."""

    def linear(self, *names: str) -> Linear:
        linear = super().linear(*names)
        self.names[id(linear)] = names
        return linear
