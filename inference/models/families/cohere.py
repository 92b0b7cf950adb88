"""Command R and R7B: mixer and MLP side by side after one layer norm, logits scaled, neighbours
rotated together. R7B has windows on most layers, and rotates only those."""

from __future__ import annotations

from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf, windowed_layers
from inference.models.families.hub_config import (
    Json,
    kinds_of_layers,
    read_llama,
    repeated,
)
from inference.models.families.roles import LayerNames
from inference.protocol.load_errors import BadFileError

ONE_NORM = LayerNames(mlp_norm=None)
PERIOD = 4
"""The last of so many layers of R7B sees the whole context."""
LAYERS: dict[str, Any] = {"norm": "layer", "is_parallel": True, "is_rope_interleaved": True}


def read_cohere(config: Json, generation: Json) -> ModelConfig:
    if config.get("use_qk_norm"):
        raise BadFileError("layer norms of each head, use_qk_norm, are not supported")
    return _read(config, generation)


def read_cohere2(config: Json, generation: Json) -> ModelConfig:
    period = int(config.get("sliding_window_pattern") or PERIOD)
    default = repeated(int(config["num_hidden_layers"]), period, last="unrotated")
    mixers = kinds_of_layers(config, default)
    return _read(
        config,
        generation,
        mixers=tuple("sliding" if kind == "sliding" else "unrotated" for kind in mixers),
        sliding_window=config.get("sliding_window") or 4096,
    )


def _read(config: Json, generation: Json, **declared: Any) -> ModelConfig:
    return read_llama(
        config,
        generation,
        **LAYERS,
        **declared,
        rms_norm_eps=float(config.get("layer_norm_eps") or 1e-5),
        defaults={"tie_word_embeddings": True},
        logit_multiplier=float(config.get("logit_scale", 0.0625)),
    )


def read_cohere_gguf(keys: GGUFKeys) -> ModelConfig:
    return _read_gguf(keys, "cohere")


def read_cohere2_gguf(keys: GGUFKeys) -> ModelConfig:
    return _read_gguf(
        keys,
        "cohere2",
        mixers=windowed_layers(keys, PERIOD, last="unrotated"),
        sliding_window=keys.integer("attention.sliding_window", 4096),
    )


def _read_gguf(keys: GGUFKeys, model_type: str, **declared: Any) -> ModelConfig:
    if keys.has_tensor("blk.0.attn_q_norm.weight"):
        raise BadFileError("layer norms of each head are not supported")
    return read_decoder_gguf(
        keys,
        model_type,
        **LAYERS,
        **declared,
        logit_multiplier=keys.number("logit_scale", 0.0625) or 1.0,
    )


COHERE = Family(
    name="Command R",
    model_types=("cohere",),
    gguf_architectures=("command-r",),
    read_config=read_cohere,
    read_gguf=read_cohere_gguf,
    layer_names=ONE_NORM,
)
COHERE2 = Family(
    name="Command R7B",
    model_types=("cohere2",),
    gguf_architectures=("cohere2",),
    read_config=read_cohere2,
    read_gguf=read_cohere2_gguf,
    layer_names=ONE_NORM,
)
FAMILIES = (COHERE, COHERE2)
