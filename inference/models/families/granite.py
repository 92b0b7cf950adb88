"""Granite 3: llama's layers with a multiplier at every joint."""

from __future__ import annotations

from inference.models.config import MixerKind, ModelConfig
from inference.models.families.decoder_tensors import DECODER, DECODER_NAMES, decoder_tensors
from inference.models.families.family import Family
from inference.models.families.gguf_keys import (
    GGUFKeys,
    read_decoder_gguf,
)
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
    mixers: tuple[MixerKind, ...] = ()
    if not is_rotated_gguf(keys, default=True):
        unrotated: MixerKind = "unrotated"
        mixers = (unrotated,) * keys.integer("block_count")
    multiplier = logit_multiplier_gguf(keys)
    return read_decoder_gguf(keys, "granite", mixers=mixers, logit_multiplier=multiplier)


def logit_multiplier_gguf(keys: GGUFKeys) -> float:
    """Raises ``BadFileError``."""
    return 1.0 / (keys.number("logit_scale", 0.0) or 1.0)


def is_rotated_gguf(keys: GGUFKeys, *, default: bool) -> bool:
    """llama.cpp's Granites say with this key whether heads are rotated."""
    return bool(keys.metadata.get(f"{keys.architecture}.rope.scaling.finetuned", default))


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
