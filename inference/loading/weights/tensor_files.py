"""The tensors of weight files, whatever the files' format, each by its Hugging Face name.

opened files ─▶ TensorFiles ─▶ renamed, joined, cut, quantised ─▶ TensorFiles
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping

import torch

from inference.models.lazy_weights import RowReader
from inference.models.stored_weights import (
    DenseWeight,
    Fp8Weight,
    StoredWeight,
    with_tensors,
    written_out,
)
from inference.protocol.load_errors import MissingTensorError


class FileTensor:
    """One tensor as the files' headers describe it; nothing is read before it is asked for. Each
    kind overrides ``dense`` or ``stored``, and what else differs."""

    shape: tuple[int, ...]
    format: str
    """For people: Q4_1, BF16 …"""
    num_bytes: int
    """As stored."""
    has_fp8 = False
    """Whether it is fp8 with scales of blocks, which ``stored`` multiplies out."""

    def dense(self) -> torch.Tensor:
        """On the CPU, in the file's float dtype, or float32 where it was quantised."""
        return written_out(self.stored())

    def stored(self) -> StoredWeight:
        """A matrix on the CPU without its bias, as the file holds it."""
        return DenseWeight(weight=self.dense())

    def stored_rows(self, first: int, last: int) -> StoredWeight:
        """Rows [first, last) of a tensor, all of whose axes but its last count as rows: of a stack
        of matrices, rows of one of them."""
        return with_tensors(self.stored(), lambda tensor: tensor[first:last])

    def reader(self) -> RowReader | None:
        """A reader of a matrix's rows; ``None``: it comes whole, from ``stored``."""
        return None

    def fp8(self) -> Fp8Weight:
        raise AssertionError("has_fp8 answers first")


class MadeTensor(FileTensor):
    """One that is made of the files' own when it is read."""

    def __init__(
        self,
        shape: tuple[int, ...],
        format: str,
        num_bytes: int,
        read: Callable[[], torch.Tensor | StoredWeight],
    ) -> None:
        self.shape, self.format, self.num_bytes, self._read = shape, format, num_bytes, read

    def dense(self) -> torch.Tensor:
        found = self._read()
        return found if isinstance(found, torch.Tensor) else written_out(found)

    def stored(self) -> StoredWeight:
        found = self._read()
        return DenseWeight(weight=found) if isinstance(found, torch.Tensor) else found


class TensorFiles:
    """All but ``names`` and ``close`` raise ``MissingTensorError``."""

    def __init__(
        self, tensors: Mapping[str, FileTensor], close: Callable[[], None] = lambda: None
    ) -> None:
        self._tensors = dict(tensors)
        self._close = close

    @property
    def names(self) -> KeysView[str]:
        return self._tensors.keys()

    def __getitem__(self, name: str) -> FileTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise MissingTensorError(f"the weight files have no tensor for {name}") from None

    def dense(self, name: str) -> torch.Tensor:
        return self[name].dense()

    def stored(self, name: str) -> StoredWeight:
        return self[name].stored()

    def reader(self, name: str) -> RowReader | None:
        return self[name].reader()

    def format_of(self, name: str) -> str:
        return self[name].format

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self[name].shape

    def bytes_of(self, name: str) -> int:
        return self[name].num_bytes

    def close(self) -> None:
        """Unmaps the files. Names, shapes and formats stay."""
        self._close()
