"""Weights quantised while loading, beside llama.cpp's types, where its Python package is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine.quantize import random_weights
from benchmarks.engine.quantize_llama_cpp import NUM_LAYERS, projections, rows

pytestmark = pytest.mark.slow

MOST = 1.25
"""Times the error of llama.cpp's best type that takes no more memory: its K types search longer,
and have a scale for 16 weights with six bits."""


@pytest.mark.parametrize("name", ["normal", "Laplace"])
def test_errors_are_near_those_of_types_of_the_same_size(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    weights = random_weights(NUM_LAYERS * 4096, 4096)[name]
    found = list(rows(projections(weights), tmp_path))
    peers = [row for row in found if row.who.startswith("llama.cpp")]
    for ours in found:
        if ours in peers:
            continue
        same_size = [row for row in peers if abs(row.bits_a_weight - ours.bits_a_weight) <= 0.1]
        assert same_size, ours
        assert ours.error <= MOST * min(row.error for row in same_size), (ours, same_size)
