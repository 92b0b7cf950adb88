"""Fields of GGUF's blocks: bytes cut apart, bits spread out to a byte for each code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Blocks = npt.NDArray[np.uint8]
"""(num_rows, row_bytes): one tensor's bytes, a row per output feature."""


def as_torch(values: npt.NDArray[np.generic]) -> torch.Tensor:
    """A copy: the mapping underneath is read-only, which torch tensors cannot be."""
    return torch.from_numpy(values.copy())


def columns(blocks: Blocks, layout: tuple[int, ...]) -> list[npt.NDArray[np.uint8]]:
    """Each block's fields, of the given byte lengths: (rows, blocks per row, field bytes)."""
    split = blocks.reshape(blocks.shape[0], -1, sum(layout))
    return np.split(split, np.cumsum(layout)[:-1], axis=2)


def half(field: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16]:
    """The float16 at the start of each block: (rows, blocks)."""
    return np.ascontiguousarray(field).view(np.float16)[:, :, 0]


def spread(
    field: npt.NDArray[np.uint8], width: int, span: int | None = None
) -> npt.NDArray[np.uint8]:
    """Takes of each ``span`` bytes (``None``: of each block's) all lowest ``width`` bits, then all
    next ones: (rows, blocks, n) -> (rows, blocks, 8 / width * n)."""
    spans = field.reshape(*field.shape[:2], -1, span or field.shape[2])
    digits = np.empty((*spans.shape[:3], 8 // width, spans.shape[3]), np.uint8)
    for index in range(8 // width):
        np.right_shift(spans, np.uint8(width * index), out=digits[:, :, :, index])
    digits &= np.uint8(2**width - 1)
    return digits.reshape(*field.shape[:2], -1)


def joined(
    low: npt.NDArray[np.uint8], high: npt.NDArray[np.uint8], num_low_bits: int
) -> npt.NDArray[np.uint8]:
    """Codes of their low and their high bits. Changes both."""
    high <<= np.uint8(num_low_bits)
    low |= high
    return low
