"""StarCoder2: layer norms, biases everywhere, and an MLP without gates."""

from __future__ import annotations

from typing import Any

from inference.models.config import Activation, ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    read_decoder,
)
from inference.models.families.roles import LayerNames

UNGATED = LayerNames(gate_up=("mlp.c_fc",), down="mlp.c_proj")
LAYERS: dict[str, Any] = {"norm": "layer", "has_norm_bias": True, "is_gated": False}


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "gelu_pytorch_tanh")
    check_whole_rotary(config)
    has_bias = bool(config.get("use_bias", True))
    activation: Activation = "gelu_tanh"
    return read_decoder(
        config,
        generation,
        **LAYERS,
        activation=activation,
        rms_norm_eps=float(config.get("norm_epsilon") or 1e-5),
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        sliding_window=config.get("sliding_window") or None,
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(
        keys,
        "starcoder2",
        **LAYERS,
        activation="gelu_tanh",
        rms_norm_eps=keys.number("attention.layer_norm_epsilon", 1e-5),
        sliding_window=keys.find("attention.sliding_window"),
    )


STARCODER2 = Family(
    name="StarCoder2",
    model_types=("starcoder2",),
    gguf_architectures=("starcoder2",),
    read_config=read_config,
    read_gguf=read_gguf,
    layer_names=UNGATED,
)
FAMILIES = (STARCODER2,)
