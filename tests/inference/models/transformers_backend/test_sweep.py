"""Each listed decoder that transformers computes, on a tiny random model, against transformers' own
answers: what puts a name into ``transformers_types.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from inference.loading.config.hub_config import parse_config
from inference.models.families.transformers_types import PAGED_TYPES
from inference.models.transformers_backend.model import TransformersModel
from tests.inference.models.dense_weights import DenseWeights
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS, Row
from tests.inference.models.transformers_backend.cached_rows import LATENT, LOCAL, WHOLE

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


@pytest.mark.parametrize("model_type", PAGED_TYPES)
def test_the_engine_answers_as_transformers_does(model_type: str, tmp_path: Path) -> None:
    config = {"sliding_window": 20} | CONFIGS.get(model_type, {})
    reference = parity.build_reference(Row(model_type=model_type, config=config))
    reference.save_pretrained(tmp_path)
    model = TransformersModel(
        parse_config(json.loads((tmp_path / "config.json").read_bytes()), {}),
        DenseWeights(load_file(tmp_path / "model.safetensors"), torch.float32, torch.device("cpu")),
        CONTEXT_TOKENS,
        "fp32",
    )
    parity.check_engine(reference, model)
