"""What every weight file format offers: tensors by Hugging Face name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch

from inference.models.weights.stored import StoredWeight


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
