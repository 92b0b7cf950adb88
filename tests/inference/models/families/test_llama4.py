"""Llama 4's layers against transformers' answers in float32: chunks of the context that prompts and
answers cross, layers that rotate nothing, and queries that grow."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.loading.config.hub_config import parse_config
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.families import parity
from tests.inference.models.families.rows import Row

pytestmark = pytest.mark.usefixtures("one_thread")

CHUNK = 16
LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": CHUNK,
    "floor_scale": 24,
    "attn_scale": 0.5,
}
UNNORMED = {"use_qk_norm": False, "num_experts_per_tok": 1, "attn_temperature_tuning": False}
ROWS = {
    "as Scout": Row(model_type="llama4_text", config=LLAMA4),
    "as Maverick": Row(model_type="llama4_text", config=LLAMA4 | UNNORMED),
}


@each_case("name", ROWS)
def test_safetensors_on_torch_and_natively(library: ctypes.CDLL, name: str, tmp_path: Path) -> None:
    reference = parity.build_reference(ROWS[name])
    folder = parity.save_safetensors(reference, tmp_path / "model")
    on_torch = parity.check_both(library, reference, folder, tmp_path)
    if name == "as Scout":  # chunks of both are stored alike
        parity.check_preemption(reference, on_torch)
        parity.check_prefix_hits(reference, on_torch)


def test_a_checkpoint_with_a_tower_is_read_as_its_text_model(tmp_path: Path) -> None:
    reference = parity.build_reference(ROWS["as Scout"])
    folder = parity.save_safetensors(reference, tmp_path / "model")
    text = json.loads((folder / "config.json").read_bytes())
    outer = {"model_type": "llama4", "text_config": text, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(outer))
    tensors = load_file(folder / "model.safetensors")
    nested = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    nested["vision_model.class_embedding"] = torch.ones(2)
    nested["multi_modal_projector.linear_1.weight"] = torch.ones(2, 2)
    save_file(nested, folder / "model.safetensors")
    found = parity.opened(folder, tmp_path)
    assert found.left_out == "2 tensors of images left out"
    found.close()
    parity.check_source(reference, folder, tmp_path)


FACTS: dict[str, Any] = LLAMA4 | {
    "model_type": "llama4_text",
    "vocab_size": 96,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def test_every_fourth_layer_sees_all() -> None:
    config = parse_config(FACTS, {})
    assert config.mixers == ("chunked", "chunked", "chunked", "unrotated")
    assert config.mlps == ("dense", "sparse", "dense", "sparse")
    assert (config.window_of("chunked"), config.window_of("unrotated")) == (CHUNK, None)
    assert config.grows_queries("unrotated") and not config.grows_queries("chunked")


@each_case(
    ("changes", "message"),
    [
        ({"layer_types": ["chunked_attention"] * 4}, "rotate nothing within chunks"),
        ({"attention_chunk_size": None}, "attention_chunk_size is None"),
        ({"floor_scale": -1}, "floor_scale is -1"),
        ({"num_experts_per_tok": 6}, "6 experts per token are more than 5"),
    ],
)
def test_layers_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadFileError, match=message):
        parse_config(FACTS | changes, {})
