"""Hybrids' config.json as it is read, and the tensors that published checkpoints must hold."""

from __future__ import annotations

from typing import Any

import pytest

from inference.models.config import ModelConfig
from inference.models.families.registry import check_architecture
from inference.models.layer_configs import state_bytes
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.families.test_published import published

QWEN3_5_27B = published("qwen3.5-27b")


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


def test_sparse_hybrids() -> None:
    for name in ("qwen3.5-35b-a3b", "qwen3-next-80b-a3b"):
        config = read(published(name))
        assert set(config.mlp_kinds) == {"sparse"} and config.rotary_dim == 64
        assert config.experts is not None and config.experts.normalizes
        assert config.experts.shared_intermediate_size == 512


def test_names_of_a_nested_checkpoint() -> None:
    family = check_architecture("qwen3_5")
    name = "model.language_model.layers.0.linear_attn.A_log"
    assert family.hub_name(name) == "model.layers.0.linear_attn.A_log"
    assert family.hub_name("lm_head.weight") == "lm_head.weight"
    assert set(family.left_out.values()) == {"vision", "multi-token prediction"}
