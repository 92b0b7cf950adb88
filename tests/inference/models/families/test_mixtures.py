"""Families with a mixture of experts, opened as an operator would and run by the engine, against
transformers' greedy answers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from inference.loading.loader import OpenedModel
from inference.models.backend import AnyModel
from inference.models.families.registry import check_architecture
from inference.models.native.build import find_compiler
from inference.models.registry import build_fastest_model, build_model
from inference.models.weights.stored import DenseWeight
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.loading.conftest import SIZES, opened
from tests.inference.models.families import parity
from tests.inference.models.families.mixtures import (
    CASES,
    NUM_LAYERS,
    QWEN,
    TOKENIZER,
    Case,
    reference_of,
    written,
)

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT_TOKENS = 128


def native_model(found: OpenedModel, native_cache_dir: Path) -> AnyModel:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    model, execution = build_fastest_model(
        found.config, found.weights, CONTEXT_TOKENS, native_cache_dir, "fp32"
    )
    assert execution.startswith("native")
    return model


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_engine_answers_as_transformers_does(
    case: Case, tmp_path: Path, native_cache_dir: Path
) -> None:
    reference = reference_of(case)
    reference.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    found = parity.opened(tmp_path / "hf", tmp_path)
    model = build_model(found.config, found.weights, CONTEXT_TOKENS, "fp32")
    found.close()
    parity.check_batch_mates(reference, model, vocab_size=SIZES["vocab_size"])
    file = written(case, tmp_path / "hf", tmp_path / "x.gguf")
    found = parity.opened(file, tmp_path)
    native = native_model(found, native_cache_dir)
    found.close()
    parity.check_batch_mates(reference, native, block_tokens=32, vocab_size=SIZES["vocab_size"])


def test_stacked_experts_of_a_file_stay_packed(tmp_path: Path) -> None:
    case = CASES["qwen2_moe"]
    reference_of(case).save_pretrained(tmp_path / "hf")
    layer = "model.layers.1.mlp"
    types = {
        f"{layer}.experts.gate_proj.weight": GGMLQuantizationType.Q4_1,
        f"{layer}.experts.up_proj.weight": GGMLQuantizationType.Q8_0,
        f"{layer}.experts.down_proj.weight": GGMLQuantizationType.Q5_0,
        f"{layer}.shared_expert.up_proj.weight": GGMLQuantizationType.Q8_0,
    }
    file = written(case, tmp_path / "hf", tmp_path / "x.gguf", types)
    found = opened(file, tmp_path)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    for name, type in types.items():
        is_stack = ".experts." in name
        own = name.replace(".experts.", ".experts.4.") if is_stack else name
        stored = found.weights.stored(own.removesuffix(".weight"))
        assert not isinstance(stored, DenseWeight)
        part = {"gate": "gate_exps", "up": "up_exps", "down": "down_exps"}
        kind = name.removesuffix("_proj.weight").rsplit(".", 1)[-1]
        theirs = f"blk.1.ffn_{part[kind] if is_stack else 'up_shexp'}.weight"
        values = gguf.dequantize(tensors[theirs].data, type)
        expected = torch.from_numpy(values[4] if is_stack else values)
        torch.testing.assert_close(stored.dequantize(), expected)
    assert found.weight_bytes == sum(tensor.n_bytes for tensor in tensors.values())
    found.close()


@each_case(("bits", "most"), [(4, 0.35), (5, 0.37), (6, 0.4)])
def test_experts_are_quantised_while_loading_and_their_router_is_not(
    tmp_path: Path, bits: int, most: float
) -> None:
    case = CASES["qwen2_moe"]
    reference_of(case).save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    dense = opened(tmp_path / "hf", tmp_path)
    found = opened(tmp_path / "hf", tmp_path, quantization=f"q{bits}")
    layer = "model.layers.0.mlp"
    expert = found.weights.stored(f"{layer}.experts.3.up_proj")
    assert not isinstance(expert, DenseWeight) and expert.bits == bits
    name = f"{layer}.gate.weight"
    assert torch.equal(found.weights.tensor(name), dense.weights.tensor(name))
    # Codes and scales of 32 weights in 20 to 26 bytes, not 128: nearly all weights are experts'.
    assert found.weight_bytes < most * dense.weight_bytes
    assert found.need.weight_bytes < dense.need.weight_bytes
    for model in (dense, found):
        model.close()


def test_more_experts_for_a_token_than_there_are_is_refused() -> None:
    config = AutoConfig.for_model("qwen3_moe", **(SIZES | QWEN | {"num_experts_per_tok": 7}))
    family = check_architecture("qwen3_moe")
    with pytest.raises(BadFileError, match="7 experts per token are more than 6"):
        family.read_config(config.to_dict(), {})


@each_case(
    ("changes", "message"),
    [
        ({"n_group": 4}, "6 experts are not 4 groups of the same two or more"),
        ({"n_group": 6}, "6 experts are not 6 groups"),
        ({"n_group": 3, "topk_group": 4}, "4 groups per token are more than 3"),
        ({"n_group": 3, "num_experts_per_tok": 3}, "1 groups of 2 experts are fewer than the 3"),
        ({"n_group": -1}, "n_group is -1"),
        ({"n_group": 2, "topk_group": "all"}, "topk_group is 'all'"),
    ],
)
def test_groups_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    config = AutoConfig.for_model("glm4_moe", **(SIZES | CASES["glm4_moe"].overrides))
    with pytest.raises(BadFileError, match=message):
        check_architecture("glm4_moe").read_config(config.to_dict() | changes, {})


def test_glm_has_a_norm_and_a_bias_by_names_of_its_own_in_gguf() -> None:
    family = check_architecture("glm4_moe")
    norm = family.gguf_name("blk.3.post_attention_norm.weight")
    assert norm == "model.layers.3.post_attention_layernorm.weight"
    bias = family.gguf_name("blk.3.exp_probs_b.bias")
    assert bias == "model.layers.3.mlp.gate.e_score_correction_bias"


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    case = CASES["glm4_moe"]
    reference_of(case).save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    path = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(path)
    tensors[f"model.layers.{NUM_LAYERS}.eh_proj.weight"] = torch.ones(2, 2)
    save_file(tensors, path)
    found = opened(tmp_path / "hf", tmp_path)
    assert found.left_out == "1 tensors of multi-token prediction left out"
    found.close()
