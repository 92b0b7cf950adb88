"""dots.llm1: GLM-4.5's mixture behind attention whose heads are rotated whole, each with a norm."""

from __future__ import annotations

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER
from inference.models.families.family import Family, GGUFNames
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.glm_moe import hub_name, routed_fields
from inference.models.families.hub_config import (
    Json,
    check_activation,
    kinds_of_layers,
    read_decoder,
)
from inference.models.families.hub_config import check_whole_rotary as check_whole_rotary_hub
from inference.models.families.mixture import MIXTURE_NAMES, gguf_mixture, mixture_tensors
from inference.protocol.load_errors import BadFileError

CHOICE_BIAS = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
NAMES = GGUFNames(model=MIXTURE_NAMES.model, layer={**MIXTURE_NAMES.layer, **CHOICE_BIAS})


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    check_whole_rotary_hub(config)
    if set(kinds_of_layers(config, default=())) - {"attention"}:
        raise BadFileError("layers with a sliding window are not supported in this architecture")
    return read_decoder(
        config,
        generation,
        qkv_bias=bool(config.get("attention_bias", False)),
        output_bias=bool(config.get("attention_bias", False)),
        qk_norm=True,
        **routed_fields(config),
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(keys, "dots1", **gguf_mixture(keys, normalizes=False))


DOTS1 = Family(
    name="dots.llm1",
    model_types=("dots1",),
    gguf_architectures=("dots1",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=mixture_tensors,
    hub_name=hub_name,
    gguf_names=NAMES,
    builder=DECODER,
)
