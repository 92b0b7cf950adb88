"""llama's layers under other names: Seed-OSS, whose queries, keys and values have biases, and ERNIE
4.5, whose neighbours are rotated together."""

from __future__ import annotations

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import (
    DECODER,
    DECODER_NAMES,
    decoder_tensors,
)
from inference.models.families.family import Family, GGUFNames
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    read_decoder,
)


def read_seed_oss(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    return read_decoder(
        {"head_dim": 128, **config},
        generation,
        qkv_bias=bool(config.get("attention_bias", True)),
        output_bias=bool(config.get("attention_out_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def read_seed_oss_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(keys, "seed_oss")


def read_ernie(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    has_bias = bool(config.get("use_bias", False))
    return read_decoder(
        {"head_dim": 128, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, **config},
        generation,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        is_rope_interleaved=True,
    )


def read_ernie_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(keys, "ernie4_5", is_rope_interleaved=True)


SEED_OSS = Family(
    name="Seed-OSS",
    model_types=("seed_oss",),
    gguf_architectures=("seed_oss",),
    read_config=read_seed_oss,
    read_gguf=read_seed_oss_gguf,
    tensors=decoder_tensors,
    gguf_names=GGUFNames(
        model=DECODER_NAMES.model,
        layer={**DECODER_NAMES.layer, "post_attention_norm": "post_attention_layernorm"},
    ),
    builder=DECODER,
)
ERNIE4_5 = Family(
    name="ERNIE 4.5",
    model_types=("ernie4_5",),
    gguf_architectures=("ernie4_5",),
    read_config=read_ernie,
    read_gguf=read_ernie_gguf,
    tensors=decoder_tensors,
    gguf_names=DECODER_NAMES,
    builder=DECODER,
)
