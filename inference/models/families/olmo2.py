"""OLMo 2 and 3: norms of what each part adds instead of what it reads, and of all heads together.
In OLMo 3 most layers see a window, and their positions are not scaled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import (
    ATTENTION_NAMES,
    DECODER,
    MLP_NAMES,
    MODEL_NAMES,
    decoder_tensors,
)
from inference.models.families.family import Family, GGUFNames
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf, windowed_layers
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    kinds_of_layers,
    positive_integer,
    read_decoder,
    repeated,
    rope_by_kind,
    rope_parameters,
)
from inference.models.families.layer_names import LayerNames

NORMED_AFTER = LayerNames(
    input_norm=None,
    mixed_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_added_norm="post_feedforward_layernorm",
)
PERIOD = 4
"""The last of so many of OLMo 3's layers sees all, where its config does not list them."""
OLMO3_THETA = 500_000.0


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    return _read(config, generation)


def read_olmo3(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    config, local_theta = rope_by_kind({"rope_theta": OLMO3_THETA, **config})
    num_layers = positive_integer(config, "num_hidden_layers")
    theta = local_theta or rope_parameters(config)["rope_theta"] or OLMO3_THETA
    return _read(
        config,
        generation,
        mixers=kinds_of_layers(config, repeated(num_layers, PERIOD)),
        sliding_window=config.get("sliding_window") or 4096,
        sliding_rope_theta=float(theta),
    )


def _read(config: Json, generation: Json, **declared: Any) -> ModelConfig:
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    has_bias = bool(config.get("attention_bias", False))
    return read_decoder(
        {"rms_norm_eps": 1e-5, **config},
        generation,
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=True,
        is_qk_norm_wide=True,
        **declared,
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """llama.cpp calls both OLMo 2: the third has a window. Raises ``BadFileError``."""
    window = keys.find("attention.sliding_window")
    theta = keys.number("rope.freq_base", OLMO3_THETA)
    if window is None:
        return read_decoder_gguf(keys, "olmo2", is_qk_norm_wide=True)
    return read_decoder_gguf(
        keys,
        "olmo3",
        is_qk_norm_wide=True,
        mixers=windowed_layers(keys, PERIOD),
        sliding_window=window,
        sliding_rope_theta=keys.number("rope.freq_base_swa", theta),
    )


OLMO2 = Family(
    name="OLMo 2",
    model_types=("olmo2",),
    gguf_architectures=("olmo2",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=partial(decoder_tensors, names=NORMED_AFTER),
    layer_names=NORMED_AFTER,
    gguf_names=GGUFNames(
        model=MODEL_NAMES,
        layer=ATTENTION_NAMES
        | MLP_NAMES
        | {
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
    builder=DECODER,
)
OLMO3 = replace(
    OLMO2,
    name="OLMo 3",
    model_types=("olmo3",),
    gguf_architectures=(),
    gguf_shared=("olmo2",),
    read_config=read_olmo3,
    read_gguf=None,
)
