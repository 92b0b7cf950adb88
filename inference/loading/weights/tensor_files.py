"""The interface of every weight file format: tensors by Hugging Face name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch

from inference.models.weights.lazy import RowReader
from inference.models.weights.stored import Fp8Weight, StoredWeight


class TensorFiles(Protocol):
    """Memory-mapped files; nothing is read before it is asked for. All but ``names`` and ``close``
    raise ``MissingTensorError``."""

    @property
    def names(self) -> Collection[str]: ...

    def dense(self, name: str) -> torch.Tensor:
        """On the CPU, in the file's float dtype, or float32 where it was quantised."""
        ...

    def stored(self, name: str) -> StoredWeight:
        """A matrix on the CPU without its bias, as the file holds it."""
        ...

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        """Rows [first, last) of a tensor, all of whose axes but its last count as rows: of a stack
        of matrices, rows of one of them."""
        ...

    def reader(self, name: str) -> RowReader | None:
        """A reader of a matrix's rows; ``None``: it comes whole, from ``stored``."""
        ...

    def has_fp8(self, name: str) -> bool:
        """Whether it is fp8 with scales of blocks, which ``stored`` multiplies out."""
        ...

    def fp8(self, name: str) -> Fp8Weight:
        """The fp8 weight of a name that has one."""
        ...

    def format_of(self, name: str) -> str:
        """For people: Q4_1, BF16 …"""
        ...

    def shape_of(self, name: str) -> tuple[int, ...]: ...

    def bytes_of(self, name: str) -> int:
        """As stored."""
        ...

    def close(self) -> None: ...


class PlainFiles:
    """Files that are read whole and hold no fp8 with scales of blocks."""

    def reader(self, name: str) -> RowReader | None:
        return None

    def has_fp8(self, name: str) -> bool:
        return False

    def fp8(self, name: str) -> Fp8Weight:
        raise AssertionError("has_fp8 answers first")


class WrappedFiles:
    """``TensorFiles`` over others. A class derived from it overrides what it changes."""

    def __init__(self, files: TensorFiles) -> None:
        self._files = files

    @property
    def names(self) -> Collection[str]:
        return self._files.names

    def source(self, name: str) -> str:
        """The tensor's name in the files underneath. Raises ``MissingTensorError``."""
        return name

    def dense(self, name: str) -> torch.Tensor:
        return self._files.dense(self.source(name))

    def stored(self, name: str) -> StoredWeight:
        return self._files.stored(self.source(name))

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        return self._files.stored_rows(self.source(name), first, last)

    def reader(self, name: str) -> RowReader | None:
        return self._files.reader(self.source(name))

    def has_fp8(self, name: str) -> bool:
        return self._files.has_fp8(self.source(name))

    def fp8(self, name: str) -> Fp8Weight:
        return self._files.fp8(self.source(name))

    def format_of(self, name: str) -> str:
        return self._files.format_of(self.source(name))

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._files.shape_of(self.source(name))

    def bytes_of(self, name: str) -> int:
        return self._files.bytes_of(self.source(name))

    def close(self) -> None:
        self._files.close()
