"""Every GGUF block format against gguf's own dequantisation, from files that gguf wrote."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from inference.loading.gguf import quants as gguf_quants
from inference.loading.gguf.header import read_header
from inference.loading.preflight import NATIVE_BYTES_PER_WEIGHT
from inference.models.weights.stored import DenseWeight, GroupedWeight, SuperBlockWeight
from tests.inference.loading.conftest import random_k_blocks

NUM_ROWS, NUM_FEATURES = 6, 512

GROUPED_BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "MXFP4": 8}
SUPER_BLOCK_BITS = {"Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6}
MOST_BYTES = {"Q4_0": 1.12, "Q2_K": 1.2, "MXFP4": 2.0}
"""Packed, times the file's: Q4_0 gets a minimum, Q2_K whole bytes for its 4-bit scales, and MXFP4
eight bits for its four."""
MOST_BYTES_OF_OTHERS = 1.04


def write_blocks(path: Path, type: GGMLQuantizationType) -> np.ndarray:
    """Returns what gguf reads back: float32 (rows, features)."""
    generator = np.random.default_rng(5)
    if type.name in SUPER_BLOCK_BITS:
        blocks = random_k_blocks(generator, type, NUM_ROWS, NUM_FEATURES)
    else:
        values = generator.normal(size=(NUM_ROWS, NUM_FEATURES)).astype(np.float32)
        blocks = gguf.quantize(values, type)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", blocks, raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    dequantized: np.ndarray = gguf.dequantize(blocks, type)
    return dequantized


@pytest.mark.parametrize("type", sorted(gguf_quants.READABLE_TYPES), ids=lambda type: type.name)
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
    is_grouped = isinstance(stored, GroupedWeight)
    assert stored.bits == (GROUPED_BITS if is_grouped else SUPER_BLOCK_BITS)[type.name]
    assert torch.equal(stored.dequantize(), expected)
    assert stored.packed_bytes == NATIVE_BYTES_PER_WEIGHT[type.name] * NUM_ROWS * NUM_FEATURES
    assert stored.packed_bytes <= MOST_BYTES.get(type.name, MOST_BYTES_OF_OTHERS) * rows.size


def test_a_four_bit_super_block_is_groups_as_well(tmp_path: Path) -> None:
    """For torch's kernels, which know no super-blocks."""
    blocks = random_k_blocks(np.random.default_rng(3), GGMLQuantizationType.Q4_K, 4, 512)
    stored = gguf_quants.stored(blocks, GGMLQuantizationType.Q4_K)
    assert isinstance(stored, SuperBlockWeight)
    assert torch.equal(stored.grouped().dequantize(), stored.dequantize())
