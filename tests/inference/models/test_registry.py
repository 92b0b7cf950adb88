"""Which model is built for which configuration; and one with a layer at a time in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.errors import UnregisteredArchitectureError
from inference.models.layer_by_layer import HEAD_ROWS, largest_layer_bytes, prompt_logits
from inference.models.registry import build_fastest_model, build_model
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.models.dense_weights import TINY, random_weights


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(UnregisteredArchitectureError, match="no family builds 'unheard'"):
        build_model(replace(TINY, architecture="unheard"), random_weights(TINY), 64)


@each_case(
    ("dtype", "path", "reason"),
    [
        (torch.float32, "", "no C++ compiler found"),
        (torch.bfloat16, None, "bfloat16 was asked for"),
    ],
    ids=str,
)
def test_torch_runs_what_the_native_decoder_cannot_and_reports_the_reason(
    dtype: torch.dtype,
    path: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if path is not None:
        monkeypatch.setenv("PATH", path)
        monkeypatch.delenv("CXX", raising=False)
    model, execution = build_fastest_model(TINY, random_weights(TINY, dtype), 64, tmp_path)
    assert isinstance(model, DecoderModel)
    assert execution.startswith(f"torch operators: {reason}")


LLAMA = replace(
    TINY,
    vocab_size=HEAD_ROWS + 100,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    max_positions=64,
)


@each_case(
    "config",
    [
        LLAMA,
        replace(LLAMA, tie_embeddings=True),
        replace(LLAMA, architecture="mistral", sliding_window=8),
        replace(LLAMA, architecture="qwen3", qk_norm=True),
    ],
    ids=["llama", "tied", "mistral", "qwen3"],
)
def test_one_layer_at_a_time_computes_what_the_whole_model_does(config: ModelConfig) -> None:
    def prompt(block_tokens: int) -> StepInput:
        return StepInput.of_sequence(range(0, 440, 11), block_tokens, logit_rows=slice(3, None))

    weights = random_weights(config)
    whole = build_model(config, weights, 40)
    with torch.inference_mode():
        expected = whole.forward(prompt(8), whole.new_kv(8, 8))
    done: list[int] = []
    logits = prompt_logits(config, weights, prompt(1), done.append)
    assert torch.allclose(logits, expected, atol=1e-4)
    assert done == [1, 2, 3]


def test_the_largest_part_is_a_layer_or_a_part_of_the_head() -> None:
    layer_weights = 32 * (16 * (2 * 4 + 2 * 2) + 3 * 48)
    assert largest_layer_bytes(replace(LLAMA, vocab_size=8), 4) == 4 * layer_weights
    assert largest_layer_bytes(LLAMA, 2) == 2 * 32 * HEAD_ROWS
