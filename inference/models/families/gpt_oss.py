"""gpt-oss: attention with sinks, within a window in every other layer, and biased experts behind a
clamped activation. Its published files hold the experts in MXFP4, and gates and the rest row by
row: ``loading/weights/named_files.py`` cuts them up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family, renaming
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf, windowed_layers
from inference.models.families.hub_config import (
    Json,
    check_activation,
    kinds_of_layers,
    positive_integer,
    read_decoder,
    repeated,
)
from inference.models.families.mixture import experts_of
from inference.models.layer_configs import ExpertsConfig
from inference.protocol.load_errors import BadFileError

ROUTING: dict[str, Any] = {
    "scoring": "softmax_of_chosen",
    "has_bias": True,
    "swish_gain": 1.702,
    "limit": 7.0,
}
"""The routing of its experts; GGUF has no key for it."""


def read_config(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu")
    num_layers = positive_integer(config, "num_hidden_layers")
    inner = positive_integer(config, "intermediate_size")
    has_bias = bool(config.get("attention_bias", True))
    kinds = kinds_of_layers(config, repeated(num_layers, 2))
    window = config.get("sliding_window")
    if window is None and "sliding" in kinds:
        raise BadFileError("config.json has sliding layers and no sliding_window")
    return read_decoder(
        config,
        generation,
        qkv_bias=has_bias,
        output_bias=has_bias,
        has_sinks=True,
        mixers=kinds,
        sliding_window=window,
        mlps=("sparse",) * num_layers,
        experts=experts_of(
            config,
            intermediate_size=inner,
            **ROUTING
            | {
                "swish_gain": float(config.get("swiglu_alpha", ROUTING["swish_gain"])),
                "limit": float(config.get("swiglu_limit", ROUTING["limit"])),
            },
        ),
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    num_layers = keys.integer("block_count")
    inner = keys.integer("expert_feed_forward_length")
    experts = ExpertsConfig(
        num_experts=keys.integer("expert_count"),
        experts_per_token=keys.integer("expert_used_count"),
        intermediate_size=inner,
        normalizes=False,
        **ROUTING,
    )
    config = read_decoder_gguf(
        keys,
        "gpt_oss",
        intermediate_size=inner,
        has_sinks=True,
        mixers=windowed_layers(keys, 2),
        sliding_window=keys.integer("attention.sliding_window"),
        mlps=("sparse",) * num_layers,
        experts=experts,
    )
    if config.rope_scaling is None:
        return config
    return replace(config, rope_scaling=replace(config.rope_scaling, truncates=False))


GPT_OSS = Family(
    name="gpt-oss",
    model_types=("gpt_oss",),
    gguf_architectures=("gpt-oss",),
    read_config=read_config,
    read_gguf=read_gguf,
    hub_name=renaming({".mlp.router.": ".mlp.gate."}),
)
FAMILIES = (GPT_OSS,)
