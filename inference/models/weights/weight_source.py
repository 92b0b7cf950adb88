"""The interface between weight files and models, by Hugging Face names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from inference.models.weights.grouped_product import GroupedProduct
from inference.models.weights.lazy import LazyWeight
from inference.models.weights.stored import StoredWeight


class Phased(Protocol):
    """A function of rows, whose phase decides which kernel runs.

    ``decode`` and ``prefill`` compute the same. A row's result never depends on the contents of
    other rows. How many rows there are may change the order in which it is summed, as cuBLAS does:
    see "Exactness" in docs/architecture/engine.md.
    """

    @property
    def is_phaseless(self) -> bool:
        """Whether both run the same kernel, so that rows of both phases can share one product."""
        ...

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        """(num_rows, in_features) in the activation dtype -> (num_rows, out_features), same dtype.
        For single-token rows: few rows, memory bound."""
        ...

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        """(num_rows, in_features) -> (num_rows, out_features). For prompt rows: compute bound."""
        ...


class Linear(Phased, Protocol):
    """A projection that may keep its weight quantised. Not a torch Parameter: inference only."""

    in_features: int
    out_features: int


class Embedding(Protocol):
    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        """(num_tokens,) int64 -> (num_tokens, hidden_size) in the activation dtype."""
        ...

    def as_linear(self) -> Linear:
        """The output head that shares this table (``tie_embeddings``)."""
        ...


class WeightSource(Protocol):
    """Opened weight files. Names are Hugging Face's (``model.layers.0.self_attn.q_proj.weight``),
    GGUF names are translated and its rotary row order undone before they come out here."""

    activation_dtype: torch.dtype
    device: torch.device

    def tensor(self, name: str) -> torch.Tensor:
        """A dense tensor (norms, biases) in the activation dtype on the device.
        Raises ``MissingTensorError``."""
        ...

    def has(self, name: str) -> bool: ...

    def linear(self, *names: str) -> Linear:
        """The named weights, each (out_features, in_features), stacked along out_features in the
        order given: one fused projection. Biases (``<name>.bias`` beside ``<name>.weight``) come
        along where the files have them. Names are given without ``.weight``."""
        ...

    def embedding(self, name: str) -> Embedding: ...

    def grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        """One projection of all experts of a layer: of each, the named weights stacked along
        out_features, without biases. Experts have as many names, of weights that are alike."""
        ...

    def stored(self, name: str) -> StoredWeight:
        """Returns a weight on the CPU as its file holds it, for kernels that pack weights in their
        own way."""
        ...

    def stored_parts(self, *names: str) -> Sequence[LazyWeight]:
        """The same weights as ``linear`` stacks, like ``stored``, and read when their rows are.
        Neighbours stored alike come as one, so there is one more for each change of format."""
        ...

    def all_tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of the files by its name there, dense and on the CPU: floats in the
        activation dtype, integers as they are. For a module that knows what to make of them
        itself."""
        ...

    def report(self) -> str:
        """Describes which weights stayed packed and with which kernel, and which were
        dequantised."""
        ...


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
