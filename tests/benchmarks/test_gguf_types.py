"""The table by GGUF type: files that are models in every type, and helexa's row without a peer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType

from benchmarks.weights.gguf_types import Reading, row_of
from benchmarks.weights.random_blocks import random_blocks
from benchmarks.weights.random_gguf import DenseShape, write
from inference.loading.gguf.header import read_header
from inference.models.families.gguf_types import GGUF_TYPES
from tests.cases import each_case
from tests.inference.loading.gguf.quantised_types import QUANTISED_TYPES

SHAPE = DenseShape(
    vocab_size=256,
    hidden_size=256,
    inner_size=256,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
)


@each_case("type", sorted(QUANTISED_TYPES), ids=lambda type: type.name)
def test_all_matrices_are_of_the_type(type: GGMLQuantizationType, tmp_path: Path) -> None:
    write(SHAPE, tmp_path / "x.gguf", type)
    infos = read_header(tmp_path / "x.gguf").tensors.values()
    assert {info.type for info in infos if len(info.shape) == 2} == {type}


def test_random_values_are_of_the_size() -> None:
    for type in sorted(QUANTISED_TYPES - {GGMLQuantizationType.Q1_0}):
        blocks = random_blocks(np.random.default_rng(2), type, (8, 512), 0.03)
        size = float(np.sqrt(np.square(gguf.dequantize(blocks, type)).mean()))
        assert 0.01 < size < 0.06, type.name


def test_a_row_has_the_ratios_to_the_peer() -> None:
    (type,) = (found for found in GGUF_TYPES if found.name == "Q4_K")
    ours, theirs = Reading((100.0, 300.0, 900.0)), Reading((50.0, 300.0, 1000.0))
    row = row_of(type, {"helexa": ours, "llama.cpp": theirs})
    assert row == ["Q4_K", "4.5", "4.625", "100", "2.00", "300", "1.00", "900", "0.90"]
    assert row_of(type, {"helexa": ours})[3:] == ["100", "", "300", "", "900", ""]
    assert ours.better(theirs).rates == (100.0, 300.0, 1000.0)
