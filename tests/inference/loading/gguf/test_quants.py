"""Every GGUF block format against gguf's own dequantisation, from files that gguf wrote."""

from __future__ import annotations

import builtins
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from inference.loading.formats import FORMATS, GGUF_FORMATS
from inference.loading.gguf import quants as gguf_quants
from inference.loading.gguf.header import READABLE_TYPES, read_header
from inference.models.weights.stored import (
    CodebookWeight,
    DenseWeight,
    GroupedWeight,
    SuperBlockWeight,
)
from tests.cases import each_case
from tests.inference.loading.conftest import QUANTISED_TYPES, blocks_of
from tests.inference.models.families import tiny_gguf

NUM_ROWS, NUM_FEATURES = 6, 512

GROUPED_BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "MXFP4": 8}
SUPER_BLOCK_BITS = {"Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6}
CODEBOOK_BITS = {
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q1_0"), 2),
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"), 3),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "NVFP4"), 4),
}


def write_blocks(path: Path, type: GGMLQuantizationType) -> np.ndarray:
    """Returns what gguf reads back: float32 (rows, features)."""
    values = np.random.default_rng(5).normal(size=(NUM_ROWS, NUM_FEATURES)).astype(np.float32)
    blocks = blocks_of(values, type)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", blocks, raw_dtype=type)
    tiny_gguf.close(writer, path)
    return dequantized(blocks, type)


def dequantized(blocks: np.ndarray, type: GGMLQuantizationType) -> npt.NDArray[np.float32]:
    """Dequantises as gguf does, and Q1_0, which gguf does not read: a float16, and a bit for each
    of 128 signs."""
    if type.name == "Q1_0":
        split = blocks.reshape(len(blocks), -1, 18)
        scales = np.ascontiguousarray(split[:, :, :2]).view(np.float16).astype(np.float32)
        bits = np.unpackbits(split[:, :, 2:], axis=2, bitorder="little")
        return np.where(bits == 1, scales, -scales).reshape(len(blocks), -1)
    values: npt.NDArray[np.float32] = gguf.dequantize(blocks, type)
    return values


@each_case("type", sorted(READABLE_TYPES), ids=lambda type: type.name)
def test_every_format_equals_ggufs_own_values(tmp_path: Path, type: GGMLQuantizationType) -> None:
    expected = torch.from_numpy(write_blocks(tmp_path / "x.gguf", type))
    info = read_header(tmp_path / "x.gguf").tensors["blk.0.ffn_up.weight"]
    assert info.shape == (NUM_ROWS, NUM_FEATURES) and info.type == type

    rows = np.fromfile(info.path, np.uint8, info.num_bytes, offset=info.offset)
    stored = gguf_quants.stored(rows.reshape(NUM_ROWS, -1), info.type)

    assert torch.equal(gguf_quants.dense(rows.reshape(NUM_ROWS, -1), type).float(), expected)
    assert stored.shape == (NUM_ROWS, NUM_FEATURES)
    if isinstance(stored, DenseWeight):
        assert type.name in ("F32", "F16", "BF16")
        assert torch.equal(stored.weight.float(), expected)
        return
    bits = {GroupedWeight: GROUPED_BITS, SuperBlockWeight: SUPER_BLOCK_BITS}
    assert stored.bits == bits.get(builtins.type(stored), CODEBOOK_BITS)[type.name]
    assert torch.equal(stored.dequantize(), expected)
    declared = next(found for found in GGUF_FORMATS if found.name == type.name)
    assert declared.is_table == isinstance(stored, CodebookWeight)
    if type.name == "Q4_K":  # torch's kernels know no super-blocks
        assert isinstance(stored, SuperBlockWeight)
        assert torch.equal(stored.grouped().dequantize(), expected)
    assert stored.packed_bytes == FORMATS[type.name].native / 8 * NUM_ROWS * NUM_FEATURES


EXTREMES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00)
"""The extreme values as float16: zeros, numbers below the smallest normal one, the largest,
infinity, no number."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each_case("type", sorted(QUANTISED_TYPES), ids=lambda type: type.name)
def test_any_bits_mean_what_they_mean_to_gguf(type: GGMLQuantizationType) -> None:
    """Random blocks, blocks of equal bytes, and scales at the ends of float16's range."""
    block_features, block_bytes = GGML_QUANT_SIZES[type]
    generator = np.random.default_rng(7)
    blocks = generator.integers(0, 256, (64, 1024 // block_features, block_bytes), dtype=np.uint8)
    for row, byte in enumerate((0x00, 0xFF, 0x80, 0x7F)):
        blocks[row] = byte
    for row, half in enumerate(EXTREMES, start=8):
        for at in (0, 2, block_bytes - 4, block_bytes - 2):
            blocks[row, :, at : at + 2] = (half & 255, half >> 8)
    rows = blocks.reshape(64, -1)
    expected = dequantized(rows, type)
    found = gguf_quants.stored(rows, type)
    assert not isinstance(found, DenseWeight)
    values, is_finite = found.dequantize().numpy(), np.isfinite(expected)
    assert np.array_equal(np.isfinite(values), is_finite)
    assert np.array_equal(values[is_finite], expected[is_finite])
