"""GGUF's blocks packed by native code, beside numpy and ``packing``."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from benchmarks.gguf_files import random_blocks
from inference.loading.gguf import quants
from inference.models.lazy_weights import (
    LazyWeight,
    MappedBlocks,
    RowReader,
    Rows,
    row_range,
    stack_lazy,
)
from inference.models.native.packing import BLOCK_CHUNK_WEIGHTS, BlockType, pack, packing
from inference.models.stored_weights import StoredWeight, stack
from tests.cases import each_case

IQ2_XS = GGMLQuantizationType.IQ2_XS
EXTREMES = (0x0000, 0x8000, 0x0001, 0x0080, 0x83FF, 0x0400, 0x63FF, 0x7000, 0x7BFF, 0xFC00, 0x7C01)
"""The extreme values as float16: zeros, numbers below the smallest normal one, the largest,
infinity, no number."""


def any_blocks(type: BlockType, num_rows: int, num_features: int, seed: int) -> np.ndarray:
    """Random bytes, some rows of one byte, and scales at the ends of float16's range."""
    block_features, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type)]
    shape = (num_rows, num_features // block_features, block_bytes)
    blocks = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    for row, byte in enumerate((0x00, 0xFF, 0x80, 0x7F)):
        blocks[row] = byte
    for row, half in enumerate(EXTREMES, start=4):
        for at in (0, 2, block_bytes - 4, block_bytes - 2):
            blocks[row, :, at : at + 2] = (half & 255, half >> 8)
    return blocks.reshape(num_rows, -1)


class Mapped:
    """A reader of blocks as ``GGUFTensorFiles`` makes one; records what it released."""

    def __init__(self, type: int, rows: np.ndarray, order: np.ndarray | None = None) -> None:
        self.type, self.rows, self.order = GGMLQuantizationType(type), rows, order
        self.released: list[tuple[int, int]] = []

    def read(self, rows: Rows) -> StoredWeight:
        return quants.stored(self.rows[rows], self.type)

    def lazy(self) -> LazyWeight:
        blocks = MappedBlocks(
            type=int(self.type),
            rows=self.rows,
            release=lambda rows: self.released.append(row_range(rows)),
        )
        reader = RowReader(num_rows=len(self.rows), read=self.read, order=self.order, blocks=blocks)
        return LazyWeight(readers=[reader], sample=reader.rows(0, 1))

    def whole(self) -> StoredWeight:
        return self.read(slice(0, len(self.rows)) if self.order is None else self.order)


def check_panels(library: ctypes.CDLL, *parts: Mapped) -> None:
    with packing(library, num_threads=2) as packer:
        packed = packer.pack(stack_lazy([part.lazy() for part in parts]))
    expected = pack(stack([part.whole() for part in parts]), library)
    assert torch.equal(packed.panels, expected.panels)
    assert (packed.format, packed.codebook) == (expected.format, expected.codebook)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers that are none
@each_case("type", BlockType, ids=lambda type: type.name)
def test_blocks_become_the_same_panels(library: ctypes.CDLL, type: BlockType) -> None:
    """Two stacked weights, the first in another order, whose rows do not fill the last panel; a row
    of no whole tiles where the type allows it."""
    assert GGMLQuantizationType(type).name == type.name
    block_features = GGML_QUANT_SIZES[GGMLQuantizationType(type)][0]
    num_features = 512 + (64 if block_features == 32 else block_features)
    order = np.random.default_rng(1).permutation(45)
    first = Mapped(type, any_blocks(type, 45, num_features, 2), order)
    second = Mapped(type, any_blocks(type, 22, num_features, 3))
    check_panels(library, first, second)
    assert first.released == [(0, 45)] and second.released == [(0, 22)]


def test_weights_of_two_types_and_of_several_chunks(library: ctypes.CDLL) -> None:
    """Q4_0 and Q4_1 have one layout. Types that native code does not read are taken apart in
    numpy."""
    generator = np.random.default_rng(4)
    q4_1, q4_0 = (
        Mapped(type, random_blocks(generator, GGMLQuantizationType(type), (20, 512), 0.03))
        for type in (BlockType.Q4_1, BlockType.Q4_0)
    )
    check_panels(library, q4_1, q4_0)
    num_rows = 2 * BLOCK_CHUNK_WEIGHTS // 8192 + 20
    mapped = Mapped(BlockType.Q4_K, any_blocks(BlockType.Q4_K, num_rows, 8192, 4))
    check_panels(library, mapped)
    assert len(mapped.released) == 3
    other = Mapped(IQ2_XS, random_blocks(generator, IQ2_XS, (20, 512), 0.03))
    check_panels(library, other)
    assert not other.released
