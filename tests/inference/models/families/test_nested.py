"""Text models in checkpoints with towers for images or audio, as older and newer releases of
transformers write them; and Gemma 4's layers, some of which read others' keys and values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.models.registry import build_model
from inference.models.transformers_backend.model import TransformersModel
from tests.cases import each_case
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS, LLAMA4, ROWS, Row

GEMMA4 = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "sliding_window": 20,
    "global_head_dim": 32,
    "tie_word_embeddings": True,
}
SHARING = Row(
    model_type="gemma4_text",
    config=GEMMA4
    | {
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 96,
        "final_logit_softcapping": 3.0,
    },
)
"""A config like the small models', with embeddings of each layer."""
EXPERTS = Row(
    model_type="gemma4_text",
    config=GEMMA4
    | {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
)
"""A config like the larger models'."""


@pytest.mark.parametrize(
    "row", [SHARING, pytest.param(EXPERTS, marks=pytest.mark.slow)], ids=["sharing", "experts"]
)
def test_gemma_4_answers_as_transformers_does(row: Row, tmp_path: Path) -> None:
    reference = parity.build_reference(row)
    folder = parity.save_safetensors(reference, tmp_path / "model")
    built = parity.built_on_torch(folder, tmp_path)
    assert isinstance(built, TransformersModel)
    parity.check_engine(reference, built)


OF_TYPE = {row.model_type: row for row in ROWS} | {
    "gemma4": SHARING,
    "llama4": Row(model_type="llama4_text", config=LLAMA4),
}
TOWER = ("vision_tower.patch.weight",)


def nest(folder: Path, outer: str, tower: tuple[str, ...], *, is_new: bool) -> None:
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
    images = {f"model.{name}" if is_new else name: torch.ones(2, 2) for name in tower}
    save_file(renamed | images, folder / "model.safetensors")


@each_case(
    ("name", "outer", "is_new", "tower"),
    [
        ("mistral", "mistral3", False, TOWER),
        ("mistral", "mistral3", True, TOWER),
        ("ministral3", "mistral3", True, TOWER),
        ("gemma4", "gemma4", True, TOWER),
        (
            "llama4",
            "llama4",
            False,
            ("vision_model.class_embedding", "multi_modal_projector.linear_1.weight"),
        ),
    ],
)
def test_a_checkpoint_with_a_tower_is_read_as_its_text(
    name: str, outer: str, is_new: bool, tower: tuple[str, ...], tmp_path: Path
) -> None:
    reference = parity.build_reference(OF_TYPE[name])
    folder = parity.save_safetensors(reference, tmp_path / "model")
    nest(folder, outer, tower, is_new=is_new)
    model = parity.opened(folder, tmp_path)
    assert model.left_out == f"{len(tower)} tensors of images left out"
    built = build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    engine = parity.engine_of(built)
    parity.check_answers(reference, engine, [parity.prompt_of(40, seed=4)], 6)
