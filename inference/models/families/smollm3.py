"""SmolLM3: llama's layers, every fourth without rotary embedding."""

from __future__ import annotations

from inference.models.config import MixerKind, ModelConfig
from inference.models.families.decoder_tensors import DECODER, DECODER_NAMES, decoder_tensors
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    read_decoder,
    repeated,
)
from inference.models.families.llama import interleaved_heads
from inference.protocol.load_errors import BadFileError

PERIOD = 4


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    if config.get("use_sliding_window"):
        raise BadFileError("a sliding window on some of the layers is not supported")
    num_layers = int(config["num_hidden_layers"])
    period = int(config.get("no_rope_layer_interval") or PERIOD)
    is_rotated = config.get("no_rope_layers")  # by what it holds: 1 where a layer has it
    mixers = _mixers(num_layers, period)
    if is_rotated:
        mixers = tuple("attention" if rotated else "unrotated" for rotated in is_rotated)
    has_bias = bool(config.get("attention_bias", False))
    return read_decoder(
        {"rope_theta": 2_000_000.0, **config},
        generation,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        mixers=mixers[:num_layers],
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(keys, "smollm3", mixers=_mixers(keys.integer("block_count"), PERIOD))


def _mixers(num_layers: int, period: int) -> tuple[MixerKind, ...]:
    return repeated(num_layers, period, others="attention", last="unrotated")


SMOLLM3 = Family(
    name="SmolLM3",
    model_types=("smollm3",),
    gguf_architectures=("smollm3",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=decoder_tensors,
    gguf_names=DECODER_NAMES,
    interleaved_heads=interleaved_heads,
    builder=DECODER,
)
