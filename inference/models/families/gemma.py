"""Gemma 1, 2 and 3: norms that multiply by one plus their weight and a scaled embedding; from
2 on norms around every part, soft caps, and windows on most layers; Gemma 3 also with its vision
tower. Gemma 4, text alone, is computed by the transformers backend: its layers that see all have
heads of another width than those within a window, and the last ones may read an earlier layer's
keys and values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from inference.models.config import Activation, ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import (
    GGUFKeys,
    head_dim,
    read_decoder_gguf,
    windowed_layers,
)
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    kinds_of_layers,
    optional_number,
    positive_integer,
    read_decoder,
    repeated,
    rope_by_kind,
    text_config,
)
from inference.models.families.roles import LayerNames
from inference.models.families.tower import TOWER, towered_name
from inference.models.families.tower_gguf import GEMMA3_PROJECTOR
from inference.models.families.tower_hub import read_siglip_vision
from inference.models.families.transformers_modules import TRANSFORMERS_PAGED, read_paged
from inference.protocol.load_errors import BadFileError

NORMED_AROUND = LayerNames(
    mixed_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_added_norm="post_feedforward_layernorm",
)
SLIDING_PERIOD = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}
"""The last of so many layers sees the whole context, where the config does not list them."""
NESTED_DEFAULTS: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
GEMMA3_LEFT_OUT = {TOWER: "images"} | {
    f"{prefix}{head}": "images"
    for prefix in ("", "model.")
    for head in ("vision_tower.head.", "vision_tower.vision_model.head.")
}
"""SigLIP's head is not computed with, also where the tower is."""
LOCAL_THETA = 10_000.0
LARGEST_LAYERS = {"gemma2": 46, "gemma3": 62}
"""The number of layers of the 27B, whose scores are scaled by the model's width over its heads.
GGUF has no key for it."""


def read_gemma(config: Json, generation: Json) -> ModelConfig:
    check_whole_rotary(config)
    return read_decoder(config, generation, **_common(config))


def read_gemma2(config: Json, generation: Json) -> ModelConfig:
    check_whole_rotary(config)
    return read_decoder(config, generation, **_common(config), **_layers(config))


def read_gemma3(config: Json, generation: Json) -> ModelConfig:
    """Rotary embeddings are declared for each kind of layer, or as one with the sliding base beside
    it. Checkpoints with a tower declare only what differs from their library's defaults."""
    whole, config = config, text_config(config, NESTED_DEFAULTS)
    vision = read_siglip_vision(whole, config)
    config, local_theta = rope_by_kind(config)
    local_theta = local_theta or config.get("rope_local_base_freq")
    check_whole_rotary(config)
    config = {"rope_theta": 1_000_000.0, **config}
    return read_decoder(
        config,
        generation,
        **_common(config),
        **_layers(config),
        qk_norm=True,
        sliding_rope_theta=float(local_theta or LOCAL_THETA),
        vision=vision,
    )


def _common(config: Json) -> dict[str, Any]:
    if config.get("use_bidirectional_attention"):
        raise BadFileError("attention to later tokens is not supported")
    named = config.get("hidden_activation") or config.get("hidden_act") or "gelu_pytorch_tanh"
    # Gemma 1's files declare gelu and mean its approximation.
    known = ("gelu_pytorch_tanh", *(["gelu"] if config["model_type"] == "gemma" else []))
    check_activation({"hidden_act": named}, *known)
    has_bias = bool(config.get("attention_bias", False))
    activation: Activation = "gelu_tanh"
    return {
        "norm": "rms_plus_one",
        "activation": activation,
        "tie_embeddings": bool(config.get("tie_word_embeddings", True)),
        "embedding_multiplier": math.sqrt(config["hidden_size"]),
        "qkv_bias": has_bias,
        "output_bias": has_bias,
    }


def _layers(config: Json) -> dict[str, Any]:
    period = config.get("sliding_window_pattern") or SLIDING_PERIOD[config["model_type"]]
    return {
        "mixers": kinds_of_layers(config, repeated(config["num_hidden_layers"], int(period))),
        "sliding_window": config.get("sliding_window") or 4096,
        "attention_scale": (config.get("query_pre_attn_scalar") or 256) ** -0.5,
        "attention_soft_cap": optional_number(config, "attn_logit_softcapping"),
        "logit_soft_cap": optional_number(config, "final_logit_softcapping"),
    }


def read_gemma_gguf(keys: GGUFKeys, model_type: str, **own: Any) -> ModelConfig:
    """llama.cpp's converter has added one to the norms' weights."""
    multiplier = math.sqrt(keys.integer("embedding_length"))
    return read_decoder_gguf(
        keys, model_type, activation="gelu_tanh", embedding_multiplier=multiplier, **own
    )


def read_gemma3_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    local_theta = keys.number("rope.freq_base_swa", LOCAL_THETA)
    return read_gemma2_gguf(keys, model_type, sliding_rope_theta=local_theta)


def read_gemma2_gguf(keys: GGUFKeys, model_type: str, **own: Any) -> ModelConfig:
    num_layers, width = keys.integer("block_count"), head_dim(keys)
    if num_layers == LARGEST_LAYERS[keys.architecture]:
        width = keys.integer("embedding_length") // keys.integer("attention.head_count")
    return read_gemma_gguf(
        keys,
        model_type,
        **own,
        mixers=windowed_layers(keys, SLIDING_PERIOD[keys.architecture]),
        sliding_window=keys.integer("attention.sliding_window", 4096),
        attention_scale=keys.number("attention.scale", 0.0) or width**-0.5,
    )


GEMMA = Family(
    model_types=("gemma",),
    gguf_architectures=("gemma",),
    read_config=read_gemma,
    read_gguf=read_gemma_gguf,
)
GEMMA2 = Family(
    model_types=("gemma2",),
    gguf_architectures=("gemma2",),
    read_config=read_gemma2,
    read_gguf=read_gemma2_gguf,
    layer_names=NORMED_AROUND,
)
GEMMA3 = Family(
    model_types=("gemma3_text", "gemma3"),
    gguf_architectures=("gemma3",),
    read_config=read_gemma3,
    read_gguf=read_gemma3_gguf,
    layer_names=NORMED_AROUND,
    hub_name=towered_name,
    left_out=GEMMA3_LEFT_OUT,
    gguf_projectors=(GEMMA3_PROJECTOR,),
)

GEMMA4_DEFAULTS = NESTED_DEFAULTS | {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "num_hidden_layers": 30,
}
GLOBAL_HEAD_DIM = 512
GEMMA4_PERIOD = 6


def read_gemma4(config: Json, generation: Json) -> ModelConfig:
    text = text_config(config, GEMMA4_DEFAULTS)
    layers = layer_kv(text)
    return replace(
        read_paged(text, generation),
        layer_kv=layers,
        num_kv_heads=max(heads for heads, _ in layers),
        head_dim=max(width for _, width in layers),
    )


def layer_kv(config: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """(KV heads, head width) of each layer; 0 heads: it reads an earlier layer's."""
    kinds = _gemma4_kinds(config)
    num_own = len(kinds) - int(config.get("num_kv_shared_layers") or 0)
    listed = {int(key): own for key, own in (config.get("per_layer_config") or {}).items()}
    shapes = [
        _gemma4_shape(config | listed.get(index, {}), "listed" if listed else kind)
        for index, kind in enumerate(kinds)
    ]
    return tuple(
        (heads if index < num_own else 0, width) for index, (heads, width) in enumerate(shapes)
    )


def _gemma4_kinds(config: Json) -> list[str]:
    num_layers = positive_integer(config, "num_hidden_layers")
    kinds = list(config.get("layer_types") or ())
    if not kinds:
        kinds = [
            "sliding_attention" if (index + 1) % GEMMA4_PERIOD else "full_attention"
            for index in range(num_layers)
        ]
    kinds[-1] = "full_attention"
    return kinds


def _gemma4_shape(config: dict[str, Any], kind: str) -> tuple[int, int]:
    heads = positive_integer(config, "num_key_value_heads")
    if kind != "full_attention":
        return heads, positive_integer(config, "head_dim")
    if config.get("attention_k_eq_v"):
        heads = int(config.get("num_global_key_value_heads") or heads)
    return heads, int(config.get("global_head_dim") or GLOBAL_HEAD_DIM)


GEMMA4: Family = replace(
    TRANSFORMERS_PAGED,
    model_types=("gemma4", "gemma4_text"),
    read_config=read_gemma4,
)
FAMILIES = (GEMMA, GEMMA2, GEMMA3, GEMMA4)
