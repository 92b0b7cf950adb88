"""Ministral 3, whose queries grow with their position; and the checkpoints that nest it, or a
mistral, beside a vision tower (Mistral Small 3.1 and later, Ministral 3, Pixtral)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig, QueryGrowth
from inference.models.families.family import Family
from inference.models.families.gguf_keys import (
    GGUFKeys,
    read_decoder_gguf,
)
from inference.models.families.hub_config import (
    Json,
    positive_integer,
    read_llama,
    rope_parameters,
    text_config,
)
from inference.models.families.llama import MISTRAL, interleaved_heads
from inference.models.families.llama import read_config as read_mistral
from inference.models.families.tower_gguf import PIXTRAL_PROJECTOR
from inference.models.families.tower_hub import read_pixtral_vision
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import BadFileError

NESTED_DEFAULTS: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 131_072,
    "hidden_size": 5120,
    "intermediate_size": 32_768,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e9,
    "tie_word_embeddings": False,
}
"""The values of Mistral Small 3.1 for keys that its config leaves out."""
PIXTRAL_DEFAULTS: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": None,
}
"""The values of keys that Pixtral 12B's text config leaves out."""


def read_ministral3(config: Json, generation: Json) -> ModelConfig:
    if config.get("sliding_window") is not None:
        raise BadFileError("a sliding window of ministral3 is not supported")
    rope = rope_parameters(config)
    growth = None
    if beta := rope.get("llama_4_scaling_beta"):
        positions = positive_integer(rope, "original_max_position_embeddings")
        growth = QueryGrowth(beta=float(beta), positions=positions)
    return read_llama(config, generation, query_growth=growth)


def read_nested(config: Json, generation: Json) -> ModelConfig:
    text = text_config(config, NESTED_DEFAULTS)
    readers = {"mistral": read_mistral, "ministral3": read_ministral3}
    if (model_type := text["model_type"]) not in readers:
        raise BadFileError(f"text_config has the architecture {model_type!r}, not a mistral's")
    read = readers[model_type](text, generation)
    return replace(read, vision=_vision(config, text, has_projector_bias=False))


def read_pixtral(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``, also for a LLaVA model with any other tower."""
    tower = config.get("vision_config")
    kind = tower.get("model_type") if isinstance(tower, dict) else None
    if kind != "pixtral":
        raise BadFileError(f"vision_config has the architecture {kind!r}, not 'pixtral'")
    text = text_config(config, PIXTRAL_DEFAULTS)
    if (model_type := text["model_type"]) != "mistral":
        raise BadFileError(f"text_config has the architecture {model_type!r}, not a mistral's")
    vision = _vision(config, text, has_projector_bias=True)
    return replace(read_mistral(text, generation), vision=vision)


def _vision(config: Json, text: Json, *, has_projector_bias: bool) -> VisionConfig | None:
    """``None`` where there is no tower of Pixtral's. Raises ``BadFileError``."""
    tower = config.get("vision_config")
    if not isinstance(tower, dict) or tower.get("model_type", "pixtral") != "pixtral":
        return None
    config = {"spatial_merge_size": 1 if has_projector_bias else 2, **config}
    return read_pixtral_vision(config, text, has_projector_bias=has_projector_bias)


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    growth = None
    if beta := keys.number("attention.temperature_scale", 0.0):
        positions = keys.find("attention.temperature_length") or keys.integer(
            "rope.scaling.original_context_length"
        )
        growth = QueryGrowth(beta=beta, positions=positions)
    return read_decoder_gguf(keys, "ministral3", query_growth=growth)


MINISTRAL3 = replace(
    MISTRAL,
    name="Ministral 3",
    model_types=("ministral3",),
    gguf_architectures=("mistral3",),
    read_config=read_ministral3,
    read_gguf=read_gguf,
    interleaved_heads=interleaved_heads,
    gguf_projectors=(PIXTRAL_PROJECTOR,),
)
MISTRAL3: Family = replace(
    MISTRAL,
    name="Mistral Small 3, Ministral 3",
    model_types=("mistral3",),
    gguf_architectures=(),
    gguf_shared=("llama", "mistral3"),
    read_config=read_nested,
    read_gguf=None,
    gguf_projectors=(PIXTRAL_PROJECTOR,),
)
PIXTRAL: Family = replace(
    MISTRAL3,
    name="Pixtral",
    model_types=("llava",),
    gguf_shared=("llama",),
    read_config=read_pixtral,
)
"""LLaVA's layout, of which no other tower is computed."""
FAMILIES = (MINISTRAL3, MISTRAL3, PIXTRAL)
