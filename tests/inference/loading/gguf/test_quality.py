"""What packed weights, and keys and values in 8 bits, cost in quality stays within a bound."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.models.native import build
from tests.inference.loading.gguf.packed_quality import following, mean_errors

BOUNDS = {"smollm2": 0.065, "gemma-3-270m": 0.065}
"""Nats, of each text's mean: measured are 0.028 to 0.049, and 0.030 to 0.051."""


def test_the_log_probability_is_of_the_token_that_follows() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1.0, 1.0, 1.0]]))
    found = following(logits, torch.tensor([2, 1, 2], dtype=torch.int32))
    torch.testing.assert_close(found.exp(), torch.tensor([0.25, 0.8]))


@pytest.mark.slow
@pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("model", BOUNDS)
def test_answers_are_as_likely_as_in_float32(
    model: str, default_gguf: Path, gemma_gguf: Path, tmp_path: Path, native_cache_dir: Path
) -> None:
    file = {"smollm2": default_gguf, "gemma-3-270m": gemma_gguf}[model]
    for text, error in mean_errors(file, tmp_path, native_cache_dir).items():
        assert 0 < error <= BOUNDS[model], text
