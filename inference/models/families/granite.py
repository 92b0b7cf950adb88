"""Granite 3 and 4, where they are dense and attend in every layer: llama's layers with a multiplier
at every joint."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inference.loading.errors import BadFileError
from inference.models.config import MixerKind, ModelConfig
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
    positive_integer,
    read_decoder,
)
from inference.models.families.layer_names import LayerNames
from inference.models.families.llama import interleaved_heads

MAMBA = "mamba"
ATTENTION = frozenset({"attention", "full_attention"})
SHARED_NAMES = LayerNames(gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear")
"""Of Granite 4, whose MLP is what its mixtures have beside their experts."""


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


def read_granite4(config: Json, generation: Json) -> ModelConfig:
    """Its config describes hybrids and mixtures as well. Raises ``BadFileError``."""
    if others := sorted(set(config.get("layer_types") or [MAMBA]) - ATTENTION):
        raise BadFileError(f"layers of the type {others[0]!r} are not supported")
    if config.get("num_local_experts", 8):
        raise BadFileError("a mixture of experts under granitemoehybrid is not supported")
    inner = positive_integer(config, "shared_intermediate_size")
    is_rotated = config.get("position_embedding_type") == "rope"
    dense = replace(read_config(config, generation), intermediate_size=inner, mlp_bias=False)
    unrotated: MixerKind = "unrotated"
    return dense if is_rotated else replace(dense, mixers=(unrotated,) * dense.num_layers)


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_no_experts(keys)
    check_whole_rotary_gguf(keys)
    return read_decoder_gguf(
        keys,
        "granite",
        attention_scale=keys.number("attention.scale", 0.0) or None,
        embedding_multiplier=keys.number("embedding_scale", 1.0),
        residual_multiplier=keys.number("residual_scale", 1.0),
        logit_multiplier=1.0 / keys.number("logit_scale", 1.0),
    )


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
GRANITE4 = replace(
    GRANITE,
    name="Granite 4 (dense)",
    model_types=("granitemoehybrid",),
    gguf_architectures=(),
    gguf_shared=("granite",),
    read_config=read_granite4,
    read_gguf=None,
    tensors=partial(decoder_tensors, names=SHARED_NAMES),
    layer_names=SHARED_NAMES,
)
