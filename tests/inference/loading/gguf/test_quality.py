"""What packed weights, and keys and values in 8 bits, cost in quality stays within a bound.
``test_published_models`` holds the float32 logits to be transformers'."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch

from benchmarks.quality import (
    MAX_TOKENS,
    exact_log_probabilities,
    following,
    mean_error,
    open_on_cpu,
    prompts,
)
from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.models.native import build
from inference.models.registry import build_fastest_model
from inference.models.step_input import ALL_ROWS, StepInput

BOUNDS = {"smollm2": 0.045, "gemma-3-270m": 0.042}
"""Nats, of the four texts' mean."""
BOUND_OF_A_TEXT = 0.065


@torch.inference_mode()
def mean_errors(gguf: Path, cache_dir: Path, native_dir: Path) -> dict[str, float]:
    """For each text, of the native decoder with keys and values in 8 bits, as a load on a CPU has
    them."""
    errors = {}
    with open_on_cpu(gguf, cache_dir) as opened:
        model, _ = build_fastest_model(
            opened.config, opened.weights, MAX_TOKENS, native_dir, "int8"
        )
        for name, token_ids in prompts(opened).items():
            assert len(token_ids) > 100
            ids = torch.tensor(token_ids, dtype=torch.int32)
            step = StepInput.of_sequence(ids.numpy(), DEFAULT_BLOCK_TOKENS, logit_rows=ALL_ROWS)
            kv = model.new_kv(-(-MAX_TOKENS // DEFAULT_BLOCK_TOKENS), DEFAULT_BLOCK_TOKENS)
            found = following(model.forward(step, kv), ids)
            errors[name] = mean_error(found, exact_log_probabilities(opened, token_ids))
    return errors


def test_the_log_probability_is_of_the_token_that_follows() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1.0, 1.0, 1.0]]))
    found = following(logits, torch.tensor([2, 1, 2], dtype=torch.int32))
    torch.testing.assert_close(torch.tensor(found).exp(), torch.tensor([0.25, 0.8]))


@pytest.mark.slow
@pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("model", BOUNDS)
def test_answers_are_as_likely_as_in_float32(
    model: str, default_gguf: Path, gemma_gguf: Path, tmp_path: Path, native_cache_dir: Path
) -> None:
    file = {"smollm2": default_gguf, "gemma-3-270m": gemma_gguf}[model]
    errors = mean_errors(file, tmp_path, native_cache_dir)
    assert all(0 < error <= BOUND_OF_A_TEXT for error in errors.values()), errors
    assert statistics.fmean(errors.values()) <= BOUNDS[model], errors
