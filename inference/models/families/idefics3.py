"""Idefics3 and SmolVLM: a llama beside a vision tower. The files' family is the llama's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.hub_config import Json, text_config
from inference.models.families.idefics3_tower import IDEFICS3_PROJECTOR, read_idefics3_vision
from inference.models.families.llama import LLAMA, read_config
from inference.protocol.load_errors import BadFileError

NESTED_DEFAULTS: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
"""The values of keys that the text model's config leaves out."""


def read_idefics3(config: Json, generation: Json) -> ModelConfig:
    """Whether embeddings are tied is what the outer config declares. Raises ``BadFileError``."""
    text = text_config(config, NESTED_DEFAULTS)
    text["tie_word_embeddings"] = config.get("tie_word_embeddings", False)
    if (model_type := text["model_type"]) != "llama":
        raise BadFileError(f"text_config has the architecture {model_type!r}, not a llama's")
    vision = read_idefics3_vision(config, text)
    return replace(read_config(text, generation), vision=vision)


IDEFICS3: Family = replace(
    LLAMA,
    name="Idefics3, SmolVLM",
    model_types=("idefics3", "smolvlm"),
    gguf_architectures=(),
    gguf_shared=("llama",),
    read_config=read_idefics3,
    read_gguf=None,
    gguf_projectors=(IDEFICS3_PROJECTOR,),
    features=frozenset({"prefix_reuse", "vision"}),
)
