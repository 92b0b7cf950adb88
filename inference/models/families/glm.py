"""GLM-4: half of each head is rotated, neighbours together; GLM-4-0414 also norms what each part
adds."""

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
from inference.models.families.gguf_keys import rotary_dim as rotary_dim_gguf
from inference.models.families.hub_config import Json, check_activation, read_decoder, rotary_dim
from inference.models.families.layer_names import LayerNames

FUSED = LayerNames(gate_up=("mlp.gate_up_proj",))
NORMED_AFTER = LayerNames(
    gate_up=("mlp.gate_up_proj",),
    mixed_norm="post_self_attn_layernorm",
    mlp_added_norm="post_mlp_layernorm",
)


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    return read_decoder(
        config,
        generation,
        qkv_bias=bool(config.get("attention_bias", True)),
        rotary_dim=rotary_dim(config, default=0.5),
        is_rope_interleaved=True,
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(
        keys, "glm4", rotary_dim=rotary_dim_gguf(keys), is_rope_interleaved=True
    )


GLM = Family(
    name="GLM-4",
    model_types=("glm",),
    read_config=read_config,
    tensors=partial(decoder_tensors, names=FUSED),
    layer_names=FUSED,
    builder=DECODER,
)
GLM4 = Family(
    name="GLM-4-0414",
    model_types=("glm4",),
    gguf_architectures=("glm4",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=partial(decoder_tensors, names=NORMED_AFTER),
    layer_names=NORMED_AFTER,
    gguf_names=GGUFNames(
        model=MODEL_NAMES,
        layer=ATTENTION_NAMES
        | MLP_NAMES
        | {
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
    ),
    builder=DECODER,
)
