"""Weights that are read some rows at a time, by several threads, so that no whole tensor is ever
unpacked in memory.

    names ─▶ LazyWeight ─ rows(first, last) ─▶ StoredWeight of those rows
               │ one RowReader for each stacked weight
               └─ block_rows(first, last) ─▶ the same as a GGUF file's own blocks, where it is one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from inference.models.stored_weights import StoredWeight, stack, with_tensors

Indices = npt.NDArray[np.int64]
Rows = slice | Indices


def row_range(rows: Rows) -> tuple[int, int]:
    if isinstance(rows, slice):
        return int(rows.start), int(rows.stop)
    return int(rows.min()), int(rows.max()) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedBlocks:
    """Rows of a mapped GGUF file. Any thread may use it."""

    type: int
    """GGUF's number of the blocks' type."""
    rows: npt.NDArray[np.uint8]
    """(num_rows, bytes of a row)."""
    release: Callable[[Rows], None]
    """Drops the pages of rows that were read from memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    blocks: MappedBlocks
    rows: Rows

    @property
    def num_rows(self) -> int:
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)

    def addresses(self) -> npt.NDArray[np.uint64]:
        """(num_rows,)"""
        array, rows = self.blocks.rows, self.rows
        assert array.strides[1] == 1
        first, last = row_range(rows)
        assert 0 <= first <= last <= len(array)
        places = np.arange(first, last) if isinstance(rows, slice) else rows
        begin: int = array.__array_interface__["data"][0]
        return np.uint64(begin) + places.astype(np.uint64) * np.uint64(array.strides[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """One weight without its bias. ``read`` may be called by any thread."""

    num_rows: int
    read: Callable[[Rows], StoredWeight]
    order: Indices | None = None
    """Each row's place in the file; ``None``: in this order."""
    blocks: MappedBlocks | None = None
    """Set where ``read`` unpacks a GGUF file's blocks."""

    def rows(self, first: int, last: int) -> StoredWeight:
        return self.read(self._places(first, last))

    def block_rows(self, first: int, last: int) -> BlockRows:
        assert self.blocks is not None
        return BlockRows(blocks=self.blocks, rows=self._places(first, last))

    def _places(self, first: int, last: int) -> Rows:
        return slice(first, last) if self.order is None else self.order[first:last]

    def reordered(self, order: Indices) -> RowReader:
        """``order``: where each row is among these."""
        assert len(order) == self.num_rows
        return replace(self, order=order if self.order is None else self.order[order])


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyWeight:
    """Weights of one layout, stacked along out_features."""

    readers: Sequence[RowReader]
    sample: StoredWeight
    """The first row: all rows are stored like it."""
    bias: torch.Tensor | None = None
    is_in_memory: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return sum(reader.num_rows for reader in self.readers), self.sample.shape[1]

    def rows(self, first: int, last: int) -> StoredWeight:
        """Without their bias."""
        return stack([reader.rows(*inner) for reader, inner in self._pieces(first, last)])

    @property
    def block_types(self) -> frozenset[int] | None:
        """GGUF's numbers of its rows' types; ``None``: not all rows are a GGUF file's blocks."""
        blocks = [reader.blocks for reader in self.readers]
        types = frozenset(one.type for one in blocks if one is not None)
        return None if None in blocks else types

    def block_rows(self, first: int, last: int) -> list[BlockRows]:
        """Only for a weight with ``block_types``."""
        return [reader.block_rows(*inner) for reader, inner in self._pieces(first, last)]

    def whole(self) -> StoredWeight:
        return replace(self.rows(0, self.shape[0]), bias=self.bias)

    def with_first(self, order: torch.Tensor) -> LazyWeight:
        """Reorders the outputs of the first of the stacked weights."""
        first, *others = self.readers
        bias = self.bias
        if bias is not None:
            bias = torch.cat([bias[order], bias[len(order) :]])
        return replace(self, readers=[first.reordered(order.numpy()), *others], bias=bias)

    def _pieces(self, first: int, last: int) -> Iterator[tuple[RowReader, tuple[int, int]]]:
        begin = 0
        for reader in self.readers:
            inner = max(first - begin, 0), min(last - begin, reader.num_rows)
            if inner[0] < inner[1]:
                yield reader, inner
            begin += reader.num_rows


def lazy(stored: StoredWeight) -> LazyWeight:

    def read(rows: Rows) -> StoredWeight:
        which = rows if isinstance(rows, slice) else torch.from_numpy(rows)
        return with_tensors(without_bias, lambda tensor: tensor[which])

    without_bias = replace(stored, bias=None)
    return LazyWeight(
        readers=[RowReader(num_rows=stored.shape[0], read=read)],
        sample=read(slice(0, 1)),
        bias=stored.bias,
        is_in_memory=True,
    )


def stack_lazy(weights: Sequence[LazyWeight]) -> LazyWeight:
    """Along out_features; zeros as biases where only others have one."""
    bias = None
    if any(weight.bias is not None for weight in weights):
        bias = torch.cat([bias_or_zeros(weight) for weight in weights])
    return LazyWeight(
        readers=[reader for weight in weights for reader in weight.readers],
        sample=weights[0].sample,
        bias=bias,
        is_in_memory=any(weight.is_in_memory for weight in weights),
    )


def bias_or_zeros(weight: StoredWeight | LazyWeight) -> torch.Tensor:
    return torch.zeros(weight.shape[0]) if weight.bias is None else weight.bias.float()
