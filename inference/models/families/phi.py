"""Phi-3 and Phi-4 (dense): llama's layers with fused projections, and LongRoPE where config.json
has it."""

from __future__ import annotations

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.gguf_keys import rotary_dim as rotary_dim_gguf
from inference.models.families.hub_config import Json, check_activation, read_decoder, rotary_dim
from inference.models.families.roles import LayerNames
from inference.protocol.load_errors import BadFileError

FUSED = LayerNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    window = config.get("sliding_window")
    found = read_decoder(
        config, generation, rotary_dim=rotary_dim(config), sliding_window=window or None
    )
    scaling = found.rope_scaling
    if scaling is not None and 2 * len(scaling.long_divisors) != found.rotary_dim:
        raise BadFileError(
            f"config.json scales {len(scaling.long_divisors)} frequencies, and heads have "
            f"{found.rotary_dim} features that are rotated in pairs"
        )
    return found


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(
        keys,
        "phi3",
        rotary_dim=rotary_dim_gguf(keys),
        sliding_window=keys.find("attention.sliding_window"),
    )


PHI3 = Family(
    name="Phi-3",
    model_types=("phi3",),
    gguf_architectures=("phi3",),
    read_config=read_config,
    read_gguf=read_gguf,
    layer_names=FUSED,
)
FAMILIES = (PHI3,)
