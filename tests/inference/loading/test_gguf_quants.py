"""Every GGUF block format against gguf's own dequantisation, from files that gguf wrote."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from inference.loading import gguf_quants
from inference.loading.gguf_header import read_header
from inference.models.stored import DenseWeight, GroupedWeight

NUM_ROWS, NUM_FEATURES = 6, 512

SCALE_FIELDS = {
    "Q2_K": (80, 84),
    "Q3_K": (108, 110),
    "Q4_K": (0, 4),
    "Q5_K": (0, 4),
    "Q6_K": (208, 210),
}
"""Where a K block holds its float16 scales; gguf cannot quantise these formats, only read them."""

GROUPED_BITS = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_0": 8, "Q8_0": 8}


def write_blocks(path: Path, type: GGMLQuantizationType) -> np.ndarray:
    """Returns what gguf reads back: float32 (rows, features)."""
    generator = np.random.default_rng(5)
    if type.name in SCALE_FIELDS:
        blocks = _random_k_blocks(generator, type)
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


def _random_k_blocks(generator: np.random.Generator, type: GGMLQuantizationType) -> np.ndarray:
    block_features, block_bytes = GGML_QUANT_SIZES[type]
    num_blocks = NUM_FEATURES // block_features
    blocks = generator.integers(0, 256, (NUM_ROWS, num_blocks, block_bytes), dtype=np.uint8)
    first, last = SCALE_FIELDS[type.name]
    scales = generator.uniform(0.001, 0.1, (NUM_ROWS, num_blocks, (last - first) // 2))
    blocks[:, :, first:last] = scales.astype(np.float16).view(np.uint8)
    return blocks.reshape(NUM_ROWS, -1)


@pytest.mark.parametrize("type", sorted(gguf_quants.READABLE_TYPES), ids=lambda type: type.name)
def test_every_format_equals_ggufs_own_values(tmp_path: Path, type: GGMLQuantizationType) -> None:
    expected = torch.from_numpy(write_blocks(tmp_path / "x.gguf", type))
    info = read_header(tmp_path / "x.gguf").tensors["blk.0.ffn_up.weight"]
    assert info.shape == (NUM_ROWS, NUM_FEATURES) and info.type == type

    rows = np.fromfile(info.path, np.uint8, info.num_bytes, offset=info.offset)
    stored = gguf_quants.stored(rows.reshape(NUM_ROWS, -1), info.type)

    assert torch.equal(gguf_quants.dense(rows.reshape(NUM_ROWS, -1), type).float(), expected)
    assert stored.shape == (NUM_ROWS, NUM_FEATURES)
    if type.name in GROUPED_BITS:
        assert isinstance(stored, GroupedWeight) and stored.bits == GROUPED_BITS[type.name]
        assert torch.equal(stored.dequantize(), expected)
    else:
        assert isinstance(stored, DenseWeight)
        assert torch.equal(stored.weight.float(), expected)
