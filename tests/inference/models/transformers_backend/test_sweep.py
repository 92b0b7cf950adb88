"""Each listed decoder that transformers computes, on a tiny random model, against transformers' own
answers: what puts a name into ``transformers_types.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText

from inference.loading.hub_config import parse_config
from inference.models.families.transformers_types import CACHED_TYPES, NESTED_TYPES, PAGED_TYPES
from inference.models.registry import build_model
from inference.models.transformers_backend.cached_model import CachedModel
from inference.models.transformers_backend.model import TransformersModel
from tests.inference.models.dense_weights import DenseWeights
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS, Row
from tests.inference.models.transformers_backend.cached_rows import LATENT, LOCAL, WHOLE, cached_row

pytestmark = pytest.mark.slow

CONFIGS: dict[str, dict[str, Any]] = {
    "cwm": {"eos_token_id": 0},  # its own lies outside of a small vocabulary
    **dict.fromkeys(("biogpt", "ctrl", "gpt-sw3", "gpt2", "gpt_neox", "persimmon"), WHOLE),
    **dict.fromkeys(("granitemoe", "granitemoe_swa", "phimoe"), LOCAL),
    "modernbert-decoder": WHOLE | {"local_attention": 40},
    "opt": WHOLE | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "granitemoeshared": LOCAL | {"shared_intermediate_size": 32},
    "minicpm3": LATENT,
    "youtu": LATENT,
}
"""What differs from the sizes of ``rows``."""


def read(kind: type[TransformersModel] | type[CachedModel], folder: Path) -> Any:
    return kind(
        parse_config(json.loads((folder / "config.json").read_bytes()), {}),
        DenseWeights(load_file(folder / "model.safetensors"), torch.float32, torch.device("cpu")),
        CONTEXT_TOKENS,
        "fp32",
    )


@pytest.mark.parametrize("model_type", [*PAGED_TYPES, *CACHED_TYPES])
def test_the_engine_answers_as_transformers_does(model_type: str, tmp_path: Path) -> None:
    is_paged = model_type in PAGED_TYPES
    config = {"sliding_window": 20} | CONFIGS.get(model_type, {})
    row = Row(model_type=model_type, config=config) if is_paged else cached_row(model_type)
    reference = parity.build_reference(row)
    reference.save_pretrained(tmp_path)
    parity.check_engine(reference, read(TransformersModel if is_paged else CachedModel, tmp_path))


TOWERS: dict[str, dict[str, Any]] = {
    "gemma4_unified": {},
    "qwen4_exp": {
        "vision_config": {"hidden_size": 32, "intermediate_size": 64, "depth": 1, "num_heads": 2}
        | {"out_hidden_size": 64, "num_position_embeddings": 16}
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
