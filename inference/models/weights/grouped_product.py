"""One projection of all experts of a layer, over rows that are sorted by expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from inference.models.weights.stored import ExpertWeight, written_out


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
