"""Which model is built for which configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.models.decoder import DecoderModel
from inference.models.errors import UnregisteredArchitectureError
from inference.models.registry import build_fastest_model, build_model
from tests.inference.models.dense_weights import TINY, DenseWeights, random_weights

CONFIG = replace(
    TINY,
    vocab_size=32,
    hidden_size=16,
    intermediate_size=16,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    tie_embeddings=True,
)


def weights(dtype: torch.dtype = torch.float32) -> DenseWeights:
    return random_weights(CONFIG, dtype)


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(UnregisteredArchitectureError, match="no family builds 'unheard'"):
        build_model(replace(CONFIG, architecture="unheard"), weights(), 64)


def test_without_a_compiler_torch_runs_and_the_report_names_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    model, execution = build_fastest_model(CONFIG, weights(), 64, tmp_path)
    assert isinstance(model, DecoderModel)
    assert execution.startswith("torch operators: no C++ compiler found")


def test_other_activations_than_float32_run_on_torch(tmp_path: Path) -> None:
    model, execution = build_fastest_model(CONFIG, weights(torch.bfloat16), 64, tmp_path)
    assert isinstance(model, DecoderModel)
    assert execution == "torch operators: bfloat16 was asked for"
