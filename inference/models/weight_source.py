"""The interface between weight files and models, by Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from inference.models.lazy_weights import LazyWeight
from inference.models.stored_weights import ExpertWeight, StoredWeight, written_out


class GroupedProduct(Protocol):
    num_experts: int

    def __call__(
        self, x: torch.Tensor, ends: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(num_entries, out_features); entries beyond the last expert's are anything. ``x``
        (num_rows, in_features); ``ends`` (num_experts,) int32: where experts' entries end; ``rows``
        (num_entries,) int64: entries' rows of ``x``; ``None``: their own."""
        ...


class DenseProduct:
    """On some cards torch's grouped product reads ``ends`` on the host."""

    def __init__(self, weights: torch.Tensor) -> None:
        """``weights`` (num_experts, out_features, in_features)."""
        self._weights, self.num_experts = weights, len(weights)

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
    """Experts are copied one after the other, so that no second copy of all is made."""
    first = written_out(stored(0)).to(device, dtype)
    weights = first.new_empty((num_experts, *first.shape))
    weights[0] = first
    for index in range(1, num_experts):
        weights[index] = written_out(stored(index)).to(device, dtype)
    return DenseProduct(weights)


class StackedProduct:
    """Weights stored in different formats, side by side."""

    def __init__(self, parts: Sequence[GroupedProduct]) -> None:
        self._parts, self.num_experts = parts, parts[0].num_experts

    def __call__(
        self, x: torch.Tensor, ends: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.cat([part(x, ends, rows) for part in self._parts], dim=-1)


class Phased(Protocol):
    """``decode`` and ``prefill`` compute the same. A row's result never depends on the contents of
    other rows; their number may change the order in which it is summed, as cuBLAS does: see
    "Exactness" in docs/architecture/engine.md."""

    @property
    def is_phaseless(self) -> bool:
        """Whether rows of both phases can share one product."""
        ...

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        """(num_rows, in_features) -> (num_rows, out_features), for single-token rows."""
        ...

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        """For prompt rows; shapes as for ``decode``."""
        ...


class Linear(Phased, Protocol):
    in_features: int
    out_features: int


class Embedding(Protocol):
    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        """(num_tokens,) int64 -> (num_tokens, hidden_size) in the activation dtype."""
        ...

    def as_linear(self) -> Linear:
        """Only for models with ``tie_embeddings``."""
        ...


class WeightSource(Protocol):
    """Names are Hugging Face's: GGUF's are translated, and its rotary row order is undone."""

    activation_dtype: torch.dtype
    device: torch.device

    def tensor(self, name: str) -> torch.Tensor:
        """Dense, in the activation dtype on the device. Raises ``MissingTensorError``."""
        ...

    def has(self, name: str) -> bool: ...

    def linear(self, *names: str) -> Linear:
        """Stacked along out_features in this order, with biases if any. Names lack ``.weight``."""
        ...

    def embedding(self, name: str) -> Embedding: ...

    def grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        """Each expert's named weights stacked along out_features, without biases; all are alike."""
        ...

    def stored(self, name: str) -> StoredWeight:
        """On the CPU, as its file holds it."""
        ...

    def stored_parts(self, *names: str) -> Sequence[LazyWeight]:
        """As ``linear`` stacks them, read when their rows are; neighbours stored alike are one."""
        ...

    def all_tensors(self) -> dict[str, torch.Tensor]:
        """Dense and on the CPU: floats in the activation dtype, integers as they are."""
        ...

    def report(self) -> str:
        """In words: the kernels of weights that stayed packed, and those that were dequantised."""
        ...


class ForwardedWeights:
    def __init__(
        self, weights: WeightSource, own_name: Callable[[str], str] = lambda name: name
    ) -> None:
        """``own_name``: the name in ``weights`` of what is asked for."""
        self._weights, self._own = weights, own_name
        self.names: dict[int, tuple[str, ...]] = {}
        """Those asked for, by a projection's ``id``; the caller keeps the projection alive."""
        self.activation_dtype = weights.activation_dtype
        self.device = weights.device

    def tensor(self, name: str) -> torch.Tensor:
        return self._weights.tensor(self._own(name))

    def has(self, name: str) -> bool:
        return self._weights.has(self._own(name))

    def linear(self, *names: str) -> Linear:
        linear = self._weights.linear(*map(self._own, names))
        self.names[id(linear)] = names
        return linear

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
