"""Granite 3: llama's layers with a multiplier at every joint."""

from __future__ import annotations

from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER, DECODER_NAMES, decoder_tensors
from inference.models.families.family import Family
from inference.models.families.gguf_keys import (
    GGUFKeys,
    check_no_experts,
    read_decoder_gguf,
)
from inference.models.families.gguf_keys import check_whole_rotary as check_whole_rotary_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    read_decoder,
)
from inference.models.families.llama import interleaved_heads


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    has_bias = bool(config.get("attention_bias", False))
    return read_decoder(
        config,
        generation,
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        attention_scale=float(config.get("attention_multiplier", 1.0)),
        embedding_multiplier=float(config.get("embedding_multiplier", 1.0)),
        residual_multiplier=float(config.get("residual_multiplier", 1.0)),
        logit_multiplier=1.0 / float(config.get("logits_scaling", 1.0)),
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_no_experts(keys)
    check_whole_rotary_gguf(keys)
    return read_decoder_gguf(
        keys,
        "granite",
        **multipliers(keys),
    )


def multipliers(keys: GGUFKeys) -> dict[str, Any]:
    """Fields of ``ModelConfig``. Raises ``BadFileError``."""
    return {
        "attention_scale": keys.number("attention.scale", 0.0) or None,
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "logit_multiplier": 1.0 / keys.number("logit_scale", 1.0),
    }


GRANITE = Family(
    name="Granite 3",
    model_types=("granite",),
    gguf_architectures=("granite",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=decoder_tensors,
    gguf_names=DECODER_NAMES,
    interleaved_heads=interleaved_heads,
    builder=DECODER,
)
