"""Hybrids' config.json as it is read, and the tensors that published checkpoints must hold."""

from __future__ import annotations

from typing import Any

import pytest

from inference.models.config import ModelConfig
from inference.models.families.registry import check_architecture
from inference.models.layer_configs import state_bytes
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.families.test_published import check_declared

QWEN3_5_27B: dict[str, Any] = {
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "vision_config": {"depth": 27},
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "eos_token_id": 248044,
    },
}

QWEN3_5_35B_A3B: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        key: value
        for key, value in QWEN3_5_27B["text_config"].items()
        if key != "intermediate_size"
    }
    | {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
}
QWEN3_NEXT_80B_A3B: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "rope_scaling": None,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
}
PUBLISHED = (QWEN3_5_27B, QWEN3_5_35B_A3B, QWEN3_NEXT_80B_A3B)


def read(config: dict[str, Any]) -> ModelConfig:
    return check_architecture(config["model_type"]).read_config(config, {})


def with_text(**changes: Any) -> dict[str, Any]:
    return QWEN3_5_27B | {"text_config": QWEN3_5_27B["text_config"] | changes}


def test_a_nested_config() -> None:
    config = read(QWEN3_5_27B)
    assert config.architecture == "qwen3_5"
    assert config.mixer_kinds.count("attention") == 16
    assert config.mixer_kinds[:4] == ("delta", "delta", "delta", "attention")
    assert config.rotary_dim == 64 and config.rope_theta == 1e7
    assert config.norm == "rms_plus_one" and config.qk_norm and config.has_output_gate
    assert config.delta is not None
    assert state_bytes(config.delta) == 4 * (3 * 10240 + 48 * 128 * 128)


def test_layer_types_report_which_layers_are_attention_whatever_the_interval() -> None:
    kinds = ["full_attention"] * 2 + ["linear_attention"] * 62
    config = read(with_text(layer_types=kinds, full_attention_interval=4))
    assert config.mixer_kinds == ("attention",) * 2 + ("delta",) * 62


@each_case(
    "kinds", [["full_attention"] * 63, ["sliding_attention"] * 64], ids=["too few", "unknown"]
)
def test_layers_of_another_kind_are_refused(kinds: list[str]) -> None:
    with pytest.raises(BadFileError, match="layer_types is not 64 times one of"):
        read(with_text(layer_types=kinds))


@each_case("published", PUBLISHED, ids=lambda config: config["model_type"])
def test_the_declared_tensors_are_the_models(published: dict[str, Any]) -> None:
    check_declared(published)


def test_sparse_hybrids() -> None:
    for published in (QWEN3_5_35B_A3B, QWEN3_NEXT_80B_A3B):
        config = read(published)
        assert set(config.mlp_kinds) == {"sparse"} and config.rotary_dim == 64
        assert config.experts is not None and config.experts.normalizes
        assert config.experts.shared_intermediate_size == 512


def test_names_of_a_nested_checkpoint() -> None:
    family = check_architecture("qwen3_5")
    name = "model.language_model.layers.0.linear_attn.A_log"
    assert family.hub_name(name) == "model.layers.0.linear_attn.A_log"
    assert family.hub_name("lm_head.weight") == "lm_head.weight"
    assert set(family.left_out.values()) == {"vision", "multi-token prediction"}
