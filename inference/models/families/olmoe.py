"""olmoe: a norm of all heads of queries together, and of keys, and experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    read_decoder,
)
from inference.models.families.mixture import (
    MIXTURE_NAMES,
    experts_of,
    gguf_mixture,
    mixture_tensors,
)
from inference.protocol.load_errors import BadFileError


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    if config.get("clip_qkv") is not None:
        raise BadFileError("clip_qkv is not supported")
    has_bias = bool(config.get("attention_bias", False))
    inner = positive_integer(config, "intermediate_size")
    return read_decoder(
        config,
        generation,
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=True,
        is_qk_norm_wide=True,
        experts=experts_of(config, intermediate_size=inner),
        mlps=("sparse",) * positive_integer(config, "num_hidden_layers"),
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    mixture = gguf_mixture(keys, normalizes=False)
    return replace(read_decoder_gguf(keys, "olmoe", **mixture), is_qk_norm_wide=True)


OLMOE = Family(
    name="olmoe",
    model_types=("olmoe",),
    gguf_architectures=("olmoe",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=mixture_tensors,
    gguf_names=MIXTURE_NAMES,
    builder=DECODER,
)
