"""qwen3_moe and qwen2_moe: qwen3's and qwen2's attention, and a mixture of experts in all layers or
some; in qwen2_moe beside an expert that all rows go through."""

from __future__ import annotations

from functools import partial

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    positive_integer,
    read_decoder,
)
from inference.models.families.mixture import (
    MIXTURE_NAMES,
    experts_of,
    gguf_mixture,
    mixture_tensors,
    mlps_of,
)
from inference.protocol.load_errors import BadFileError


def read_qwen3(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    _check(config)
    has_bias = bool(config.get("attention_bias", False))
    return read_decoder(
        config,
        generation,
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=True,
        experts=experts_of(config),
        mlps=mlps_of(config),
    )


def read_qwen2(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    _check(config)
    shared = positive_integer(config, "shared_expert_intermediate_size")
    return read_decoder(
        config,
        generation,
        qkv_bias=bool(config.get("qkv_bias", True)),
        experts=experts_of(config, shared_intermediate_size=shared),
        mlps=mlps_of(config),
    )


def _check(config: Json) -> None:
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    if config.get("use_sliding_window"):
        raise BadFileError("a sliding window on some of the layers is not supported")


def _read_gguf(model_type: str, normalizes: bool, keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(keys, model_type, **gguf_mixture(keys, normalizes=normalizes))


QWEN3_MOE = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    gguf_architectures=("qwen3moe",),
    read_config=read_qwen3,
    read_gguf=partial(_read_gguf, "qwen3_moe", True),
    tensors=mixture_tensors,
    gguf_names=MIXTURE_NAMES,
    builder=DECODER,
)
QWEN2_MOE = Family(
    name="qwen2_moe",
    model_types=("qwen2_moe",),
    gguf_architectures=("qwen2moe",),
    read_config=read_qwen2,
    read_gguf=partial(_read_gguf, "qwen2_moe", False),
    tensors=mixture_tensors,
    gguf_names=MIXTURE_NAMES,
    builder=DECODER,
)
