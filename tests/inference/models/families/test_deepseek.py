"""DeepSeek's kin, with latent attention, against transformers' answers in float32."""

from __future__ import annotations

import ctypes
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from transformers import PreTrainedModel

from inference.loading.config.hub_config import parse_config
from inference.models.cache.kv_format import KVFormat, kv_bytes_of_layer, kv_bytes_per_token
from inference.models.native.model import NativeModel
from inference.models.registry import build_model
from inference.models.step_input import StepInput
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.families import parity
from tests.inference.models.families.latent_gguf import ROWS, V2, V3, save_latent
from tests.inference.models.families.rows import CONTEXT_TOKENS, Row
from tests.inference.models.families.test_published import published

pytestmark = pytest.mark.usefixtures("one_thread")


def reference_of(name: str, row: Row | None = None) -> PreTrainedModel:
    """With a bias that chooses experts, where the family has one."""
    reference = parity.build_reference(row or ROWS[name])
    for own, buffer in reference.named_buffers():
        if own.endswith("e_score_correction_bias"):
            torch.nn.init.uniform_(buffer, -0.3, 0.3)
    return reference


def saved(name: str, folder: Path, **changes: Any) -> tuple[PreTrainedModel, Path]:
    """``changes``: of config.json."""
    reference = reference_of(name)
    parity.save_safetensors(reference, folder)
    config = json.loads((folder / "config.json").read_bytes()) | changes
    if name == "Kimi K2":
        config["model_type"] = "kimi_k2"
    (folder / "config.json").write_text(json.dumps(config))
    return reference, folder


@each_case("name", ROWS)
def test_safetensors_on_torch_and_natively(library: ctypes.CDLL, name: str, tmp_path: Path) -> None:
    reference, folder = saved(name, tmp_path / "model")
    on_torch = parity.check_both(library, reference, folder, tmp_path)
    if name == "V3":  # latents of all are stored alike
        parity.check_preemption(reference, on_torch)
        parity.check_prefix_hits(reference, on_torch)


def gguf_reference(name: str, **changes: Any) -> PreTrainedModel:
    """``changes``: of the row's config. YaRN's cosines and sines are multiplied by nothing, which
    is all that GGUF has."""
    row = ROWS[name]
    rope = row.config["rope_parameters"]
    if "mscale" in rope:
        rope = rope | {"mscale": rope["mscale_all_dim"]}
    config = row.config | {"rope_parameters": rope} | changes
    return reference_of(name, replace(row, config=config))


@each_case(
    ("name", "is_split"),
    [("V2", True), ("V2-Lite", False), ("V3", True), ("Kimi K2", False), ("GLM-4.7-Flash", True)],
)
def test_gguf(name: str, is_split: bool, tmp_path: Path) -> None:
    reference = gguf_reference(name)
    path = save_latent(reference, tmp_path / "model.gguf", is_split=is_split)
    model = parity.opened(path, tmp_path)
    assert model.config.latent is not None and model.config.latent.is_up_split is is_split
    built = build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    parity.check_batch_mates(reference, built)


@each_case("name", ["V2-Lite", "V3"])
def test_both_layouts_of_gguf_natively(library: ctypes.CDLL, name: str, tmp_path: Path) -> None:
    reference = gguf_reference(name)
    found = []
    for is_split in (True, False):
        path = save_latent(reference, tmp_path / f"{is_split}.gguf", is_split=is_split)
        native = parity.natively(library, path, tmp_path)
        step = StepInput.of_sequence([3, 70, 5, 8, 90, 11, 2, 40], 32)
        found.append(native.forward(step, native.new_kv(2, 32)))
        parity.check_batch_mates(reference, native, block_tokens=native.decoder.block_tokens)
    assert torch.equal(*found), "the same products of the same numbers"


def test_packed_types_of_a_mixture_stay_packed(library: ctypes.CDLL, tmp_path: Path) -> None:
    reference = gguf_reference("V2-Lite")
    types = {
        "_exps": GGMLQuantizationType.Q4_1,
        "_shexp": GGMLQuantizationType.Q8_0,
        "attn_output": GGMLQuantizationType.Q8_0,
        "attn_kv_a_mqa": GGMLQuantizationType.Q5_0,
        "attn_v_b": GGMLQuantizationType.Q8_0,
        "attn_k_b": GGMLQuantizationType.Q8_0,
        "attn_q.": GGMLQuantizationType.Q4_1,
    }
    path = save_latent(reference, tmp_path / "x.gguf", is_split=True, types=types)
    model = parity.opened(path, tmp_path)
    native = NativeModel(library, model.config, model.weights, CONTEXT_TOKENS, "fp32")
    torchs = build_model(model.config, model.weights, CONTEXT_TOKENS, "fp32")
    model.close()
    report = model.weights.report()
    assert "Q8_0 kept in 8 bits" in report and "Q4_1 kept in 4 bits" in report
    step = StepInput.of_sequence([3, 70, 5, 8, 90, 11, 2, 40], 32)
    ours, theirs = (one.forward(step, one.new_kv(2, 32)).softmax(-1) for one in (native, torchs))
    assert ((ours - theirs).abs().sum(dim=-1) / 2).median() < 0.15


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    reference = gguf_reference("V3")
    path = save_latent(reference, tmp_path / "x.gguf", is_split=True, num_predicting=1)
    model = parity.opened(path, tmp_path)
    model.close()
    assert model.config.num_layers == 3
    assert model.left_out == "1 tensors of multi-token prediction left out"


PUBLISHED = published("deepseek-v2-lite")


@each_case(("kv_format", "of_layer"), [("bf16", 2 * 576), ("fp32", 4 * 576), ("int8", 576 + 4 * 9)])
def test_a_token_keeps_one_latent_for_all_heads(kv_format: KVFormat, of_layer: int) -> None:
    config = parse_config(PUBLISHED, {})
    assert kv_bytes_of_layer(config, 3, kv_format) == of_layer
    assert kv_bytes_per_token(config, kv_format) == 27 * of_layer
    scale = 0.1 * 0.707 * math.log(40) + 1
    assert config.attention_scale == pytest.approx(192**-0.5 * scale**2)
    assert config.rope_scaling is not None and config.rope_scaling.attention_factor == 1.0


def test_blocks_take_what_is_planned(tmp_path: Path) -> None:
    _, folder = saved("V3", tmp_path / "model")
    model = parity.opened(folder, tmp_path)
    built = build_model(model.config, model.weights, 64, "int8")
    model.close()
    held = sum(one.nbytes for one in built.new_kv(3, 8).block(0).values())
    assert held == 8 * kv_bytes_per_token(built.config, "int8")


@each_case(
    ("config", "changes", "message"),
    [
        (V2, {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported; known: greedy"),
        (V2, {"norm_topk_prob": True}, "norm_topk_prob is not supported"),
        (V2, {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported"),
        (V3, {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        (V3, {"topk_method": "greedy"}, "topk_method 'greedy' is not supported"),
        (V3, {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        (V3, {"kv_lora_rank": None}, "kv_lora_rank is None"),
        (V3, {"qk_rope_head_dim": 7}, "7 features of each head"),
        (V3, {"n_group": 5}, "12 experts are not 5 groups of the same two or more"),
        (V2, {"n_group": 5}, "12 experts are not 5 groups of the same one or more"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    kind = "deepseek_v2" if config is V2 else "deepseek_v3"
    sizes = {key: PUBLISHED[key] for key in ("vocab_size", "hidden_size", "intermediate_size")}
    facts = sizes | {"num_attention_heads": 4, "max_position_embeddings": 128, "model_type": kind}
    with pytest.raises(BadFileError, match=message):
        parse_config(facts | config | changes, {})
