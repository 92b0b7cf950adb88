"""Which model is built for which configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.errors import UnregisteredArchitectureError
from inference.models.registry import build_fastest_model, build_model
from tests.inference.models.dense_weights import DenseWeights

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=32,
    hidden_size=16,
    intermediate_size=16,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=16,
    max_positions=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_embeddings=True,
)


def weights(dtype: torch.dtype = torch.float32) -> DenseWeights:
    layer = "model.layers.0"
    square = [f"{layer}.self_attn.{name}_proj.weight" for name in "qkvo"]
    square += [f"{layer}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    norms = ["model.norm.weight", f"{layer}.input_layernorm.weight"]
    norms += [f"{layer}.post_attention_layernorm.weight"]
    tensors = {name: torch.randn(16, 16) for name in square}
    tensors |= {name: torch.ones(16) for name in norms}
    tensors["model.embed_tokens.weight"] = torch.randn(32, 16)
    return DenseWeights(tensors, dtype, torch.device("cpu"))


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
