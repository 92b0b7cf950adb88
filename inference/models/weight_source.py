"""The interface between weight files and models, by Hugging Face names; and the product of one
projection of all experts of a layer with rows that are sorted by expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from inference.models.lazy_weights import LazyWeight
from inference.models.stored_weights import ExpertWeight, StoredWeight, written_out


class GroupedProduct(Protocol):
    @property
    def num_experts(self) -> int: ...

    def __call__(
        self, x: torch.Tensor, ends: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Each entry's row of ``x`` times the weight of the entry's expert.

        ``x`` (num_rows, in_features); ``ends`` (num_experts,) int32: where each expert's entries
        end; ``rows`` (num_entries,) int64: the row of ``x`` that each entry is, ``None``: its own.
        (num_entries, out_features); entries beyond the last expert's are anything.
        """
        ...


class DenseProduct:
    """Multiplies by torch's grouped product, which on some cards reads ``ends`` on the host."""

    def __init__(self, weights: torch.Tensor) -> None:
        """``weights`` (num_experts, out_features, in_features)."""
        self._weights = weights

    @property
    def num_experts(self) -> int:
        return self._weights.shape[0]

    def __call__(
        self, x: torch.Tensor, ends: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        entries = (x if rows is None else x.index_select(0, rows)).to(self._weights.dtype)
        product: torch.Tensor = torch._grouped_mm(
            entries, self._weights.transpose(-2, -1), offs=ends
        )
        return product


def dense_product(
    stored: Callable[[int], ExpertWeight],
    num_experts: int,
    device: torch.device,
    dtype: torch.dtype,
) -> DenseProduct:
    """``stored``: an expert's weight by its number. They go to the device one after the other, so
    that no second copy of all of them is made."""
    first = written_out(stored(0)).to(device, dtype)
    weights = first.new_empty((num_experts, *first.shape))
    weights[0] = first
    for index in range(1, num_experts):
        weights[index] = written_out(stored(index)).to(device, dtype)
    return DenseProduct(weights)


class StackedProduct:
    """Projections of one input whose weights are stored in different formats, side by side."""

    def __init__(self, parts: Sequence[GroupedProduct]) -> None:
        self._parts = list(parts)

    @property
    def num_experts(self) -> int:
        return self._parts[0].num_experts

    def __call__(
        self, x: torch.Tensor, ends: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.cat([part(x, ends, rows) for part in self._parts], dim=-1)


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
    def __init__(
        self, weights: WeightSource, own_name: Callable[[str], str] = lambda name: name
    ) -> None:
        """``own_name``: the name in ``weights`` of what is asked for."""
        self._weights, self._own = weights, own_name
        self.activation_dtype = weights.activation_dtype
        self.device = weights.device

    def tensor(self, name: str) -> torch.Tensor:
        return self._weights.tensor(self._own(name))

    def has(self, name: str) -> bool:
        return self._weights.has(self._own(name))

    def linear(self, *names: str) -> Linear:
        return self._weights.linear(*map(self._own, names))

    def embedding(self, name: str) -> Embedding:
        return self._weights.embedding(self._own(name))

    def grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        return self._weights.grouped([list(map(self._own, names)) for names in experts])

    def stored(self, name: str) -> StoredWeight:
        return self._weights.stored(self._own(name))

    def stored_parts(self, *names: str) -> Sequence[LazyWeight]:
        return self._weights.stored_parts(*map(self._own, names))

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
