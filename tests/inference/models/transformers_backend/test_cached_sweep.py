"""Each listed decoder that transformers computes with its own cache, on a tiny random model,
against transformers' own answers: what puts a name into ``transformers_types.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from inference.loading.config.hub_config import parse_config
from inference.models.families.transformers_types import CACHED_TYPES, NESTED_TYPES
from inference.models.registry import build_model
from inference.models.transformers_backend.cached_model import CachedModel
from tests.inference.models.dense_weights import DenseWeights
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS
from tests.inference.models.transformers_backend.cached_rows import cached_row

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model_type", CACHED_TYPES)
def test_the_engine_answers_as_transformers_does(model_type: str, tmp_path: Path) -> None:
    parity.check_engine(*saved_and_read(model_type, tmp_path))


def saved_and_read(model_type: str, tmp_path: Path) -> tuple[PreTrainedModel, CachedModel]:
    reference = parity.build_reference(cached_row(model_type))
    reference.save_pretrained(tmp_path)
    model = CachedModel(
        parse_config(json.loads((tmp_path / "config.json").read_bytes()), {}),
        DenseWeights(load_file(tmp_path / "model.safetensors"), torch.float32, torch.device("cpu")),
        CONTEXT_TOKENS,
        "fp32",
    )
    return reference, model


TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
TOWERS: dict[str, dict[str, Any]] = {
    "gemma4_unified": {},
    "qwen4_exp": {
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "depth": 1,
            "num_heads": 2,
            "out_hidden_size": 64,
            "num_position_embeddings": 16,
        }
    },
}


@pytest.mark.parametrize("model_type", TOWERS)
def test_a_text_model_beside_a_tower_is_read_as_such(model_type: str, tmp_path: Path) -> None:
    is_tied = {"tie_word_embeddings": model_type == "gemma4_unified"}
    text = cached_row(NESTED_TYPES[model_type]).sizes | is_tied
    config = AutoConfig.for_model(model_type, text_config=text, **TOWERS[model_type], **is_tied)
    torch.manual_seed(7)
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    opened = parity.opened(parity.save_safetensors(reference, tmp_path / "m"), tmp_path)
    model = build_model(opened.config, opened.weights, CONTEXT_TOKENS)
    opened.close()
    assert ("tensors of images left out" in opened.left_out) == bool(TOWERS[model_type])
    parity.check_prefix_hits(reference, model)
