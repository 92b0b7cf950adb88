"""What every weight file format offers: tensors by Hugging Face name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

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

    def format_of(self, name: str) -> str:
        """For people: Q4_1, BF16 …"""
        ...

    def shape_of(self, name: str) -> tuple[int, ...]: ...

    def bytes_of(self, name: str) -> int:
        """As stored."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Fp8Files(Protocol):
    """Files that may hold fp8 with scales of blocks, which ``stored`` multiplies out."""

    def has_fp8(self, name: str) -> bool: ...

    def fp8(self, name: str) -> Fp8Weight:
        """Only of a name that has it."""
        ...


@runtime_checkable
class LazyFiles(Protocol):
    """Files some of whose weights need not be read whole."""

    def reader(self, name: str) -> RowReader | None:
        """A reader of a matrix's rows; ``None``: it comes whole, from ``stored``."""
        ...


def row_reader(files: TensorFiles, name: str) -> RowReader | None:
    return files.reader(name) if isinstance(files, LazyFiles) else None


def has_fp8(files: TensorFiles, name: str) -> bool:
    return isinstance(files, Fp8Files) and files.has_fp8(name)


def fp8_weight(files: TensorFiles, name: str) -> Fp8Weight | None:
    return files.fp8(name) if isinstance(files, Fp8Files) and files.has_fp8(name) else None


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
        return row_reader(self._files, self.source(name))

    def has_fp8(self, name: str) -> bool:
        return has_fp8(self._files, self.source(name))

    def fp8(self, name: str) -> Fp8Weight:
        found = fp8_weight(self._files, self.source(name))
        assert found is not None, "has_fp8 answers first"
        return found

    def format_of(self, name: str) -> str:
        return self._files.format_of(self.source(name))

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._files.shape_of(self.source(name))

    def bytes_of(self, name: str) -> int:
        return self._files.bytes_of(self.source(name))

    def close(self) -> None:
        self._files.close()
