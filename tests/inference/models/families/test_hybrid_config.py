"""What hybrids' config.json says, and what of published ones their checkpoints must hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inference.loading.errors import BadFileError
from inference.models.config import ModelConfig
from inference.models.families.registry import check_architecture

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
    assert config.delta.state_bytes_per_layer == 4 * (3 * 10240 + 48 * 128 * 128)


def test_layer_types_say_which_layers_are_attention_whatever_the_interval() -> None:
    kinds = ["full_attention"] * 2 + ["linear_attention"] * 62
    config = read(with_text(layer_types=kinds, full_attention_interval=4))
    assert config.mixer_kinds == ("attention",) * 2 + ("delta",) * 62


@pytest.mark.parametrize(
    "kinds", [["full_attention"] * 63, ["sliding_attention"] * 64], ids=["too few", "unknown"]
)
def test_layers_of_another_kind_are_refused(kinds: list[str]) -> None:
    with pytest.raises(BadFileError, match="layer_types is not 64 times one of"):
        read(with_text(layer_types=kinds))


@pytest.mark.parametrize("published", [QWEN3_5_27B], ids=lambda config: config["model_type"])
def test_a_published_checkpoint_holds_what_is_expected(published: dict[str, Any]) -> None:
    """Names and shapes, beside those of transformers' text model."""
    config = read(published)
    text = dict(published.get("text_config", published))
    text.pop("full_attention_interval", None)
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(text.pop("model_type"), **text)
        )
    expected = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    family = check_architecture(published["model_type"])
    assert {tensor.name: tensor.shape for tensor in family.tensors(config)} == expected


def test_names_of_a_nested_checkpoint() -> None:
    family = check_architecture("qwen3_5")
    name = "model.language_model.layers.0.linear_attn.A_log"
    assert family.hub_name(name) == "model.layers.0.linear_attn.A_log"
    assert family.hub_name("lm_head.weight") == "lm_head.weight"
    assert set(family.left_out.values()) == {"vision", "multi-token prediction"}
