"""The quality benchmark as a bound: what packed weights and keys and values in 8 bits cost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.weights.quality import following, readings, texts
from inference.models.native import build

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
    found = {one.text: one for one in readings(file, tmp_path, native_cache_dir)}
    assert found.keys() == texts().keys()
    for text, one in found.items():
        assert one.num_tokens > 100
        assert 0 < one.helexa <= BOUNDS[model], f"{text}: {one}"
