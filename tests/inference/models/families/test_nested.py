"""Text models in checkpoints with towers for images or audio, as older and newer releases of
transformers write them; and Gemma 4's layers, some of which read others' keys and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.loading.config.hub_config import parse_config
from inference.models.cache.kv_format import cache_layout, kv_bytes_per_token
from inference.models.families.gemma import layer_kv
from inference.models.registry import build_model
from inference.models.transformers_backend.model import TransformersModel, inspect_config
from tests.cases import each_case
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS, ROWS, Row

KINDS = ["sliding_attention", "full_attention"]
SHARING = Row(
    model_type="gemma4_text",
    config={
        "num_hidden_layers": 6,
        "layer_types": KINDS * 3,
        "sliding_window": 20,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 96,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
)
"""A config like the small models', with embeddings of each layer."""
EXPERTS = Row(
    model_type="gemma4_text",
    config={
        "num_hidden_layers": 4,
        "layer_types": KINDS * 2,
        "sliding_window": 20,
        "global_head_dim": 32,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
        "tie_word_embeddings": True,
    },
)
"""A config like the larger models'."""


@pytest.mark.parametrize(
    "row", [SHARING, pytest.param(EXPERTS, marks=pytest.mark.slow)], ids=["sharing", "experts"]
)
def test_gemma_4_answers_as_transformers_does(row: Row, tmp_path: Path) -> None:
    reference = parity.build_reference(row)
    folder = parity.save_safetensors(reference, tmp_path / "model")
    model = parity.opened(folder, tmp_path)
    built = build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    assert isinstance(built, TransformersModel)
    parity.check_engine(reference, built)


PUBLISHED: dict[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 15,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_kv_shared_layers": 5,
        "hidden_size": 1536,
        "intermediate_size": 6144,
    },
}
"""Facts of gemma-4-E2B's config.json, with fewer layers."""


def test_layers_that_read_others_take_no_memory_for_keys() -> None:
    config = parse_config(PUBLISHED, {})
    assert config.layer_kv[:5] == ((1, 256),) * 4 + ((1, 512),)
    assert {heads for heads, _ in config.layer_kv[10:]} == {0}
    assert len(cache_layout(config).attention_layers) == 15
    assert kv_bytes_per_token(config, "bf16") == 2 * 2 * 2 * (4 * 256 + 512)


def test_transformers_agrees_on_who_reads_whom() -> None:
    config = parse_config(PUBLISHED, {})
    calls = inspect_config(config)
    assert [call.kv_layer for call in calls] == [*range(10), 8, 8, 8, 8, 9]
    assert [call.window for call in calls[:5]] == [512] * 4 + [None]


def test_heads_of_all_layers_may_be_listed() -> None:
    listed = {"0": {"head_dim": 8}, "1": {"head_dim": 16, "num_key_value_heads": 1}}
    config = {"num_hidden_layers": 2, "num_key_value_heads": 4, "per_layer_config": listed}
    assert layer_kv(config) == ((4, 8), (1, 16))


def row_of(model_type: str) -> Row:
    return next(row for row in ROWS if row.model_type == model_type)


NESTED = {
    "mistral": (row_of("mistral"), "mistral3"),
    "ministral3": (row_of("ministral3"), "mistral3"),
    "gemma4": (SHARING, "gemma4"),
}


def nest(folder: Path, outer: str, *, is_new: bool) -> None:
    """Nests the model in ``folder`` as a checkpoint with a tower has it."""
    config = json.loads((folder / "config.json").read_bytes())
    nested = {"model_type": outer, "text_config": config, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(nested))
    tensors = load_file(folder / "model.safetensors")
    head = tensors.pop("lm_head.weight", None)
    prefix = "model.language_model." if is_new else "language_model.model."
    renamed = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    if head is not None:
        renamed["lm_head.weight" if is_new else "language_model.lm_head.weight"] = head
    tower = "model.vision_tower.patch.weight" if is_new else "vision_tower.patch.weight"
    save_file(renamed | {tower: torch.ones(2, 2)}, folder / "model.safetensors")


@each_case(
    ("name", "is_new"),
    [("mistral", False), ("mistral", True), ("ministral3", True), ("gemma4", True)],
)
def test_a_checkpoint_with_a_tower_is_read_as_its_text(
    name: str, is_new: bool, tmp_path: Path
) -> None:
    row, outer = NESTED[name]
    reference = parity.build_reference(row)
    folder = parity.save_safetensors(reference, tmp_path / "model")
    nest(folder, outer, is_new=is_new)
    model = parity.opened(folder, tmp_path)
    assert model.left_out == "1 tensors of images left out"
    built = build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    engine = parity.engine_of(built)
    parity.check_answers(reference, engine, [parity.prompt_of(40, seed=4)], 6)
