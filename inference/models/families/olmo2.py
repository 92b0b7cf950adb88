"""OLMo 2: norms of what each part adds instead of what it reads, and of all heads together."""

from __future__ import annotations

from functools import partial

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import (
    ATTENTION_NAMES,
    DECODER,
    MLP_NAMES,
    MODEL_NAMES,
    decoder_tensors,
)
from inference.models.families.family import Family, GGUFNames
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.gguf_keys import check_whole_rotary as check_whole_rotary_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    read_decoder,
)
from inference.models.families.layer_names import LayerNames

NORMED_AFTER = LayerNames(
    input_norm=None,
    mixed_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_added_norm="post_feedforward_layernorm",
)


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
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
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_whole_rotary_gguf(keys)
    return read_decoder_gguf(keys, "olmo2", is_qk_norm_wide=True)


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
