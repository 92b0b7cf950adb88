"""Gemma 4, text: transformers' own module computes it. Its layers that see all have heads of
another width than those within a window, and the last ones may read an earlier layer's keys and
values instead of making their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.hub_config import Json, positive_integer
from inference.models.families.nested import text_config
from inference.models.families.transformers_paged import TRANSFORMERS_PAGED, read_config

NESTED_DEFAULTS: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
GLOBAL_HEAD_DIM = 512
PERIOD = 6
"""The last of so many layers sees all, where config.json does not list them."""


def read_gemma4(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    text = text_config(config, NESTED_DEFAULTS)
    layers = layer_kv(text)
    return replace(
        read_config(text, generation),
        layer_kv=layers,
        num_kv_heads=max(heads for heads, _ in layers),
        head_dim=max(width for _, width in layers),
    )


def layer_kv(config: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Returns each layer's number of KV heads and their width. Raises ``BadFileError``."""
    kinds = _kinds(config)
    num_own = len(kinds) - int(config.get("num_kv_shared_layers") or 0)
    listed = {int(key): own for key, own in (config.get("per_layer_config") or {}).items()}
    shapes = [
        _shape(config | listed.get(index, {}), "listed" if listed else kind)
        for index, kind in enumerate(kinds)
    ]
    return tuple(
        (heads if index < num_own else 0, width) for index, (heads, width) in enumerate(shapes)
    )


def _kinds(config: Json) -> list[str]:
    num_layers = positive_integer(config, "num_hidden_layers")
    kinds = list(config.get("layer_types") or ())
    if not kinds:
        kinds = [
            "sliding_attention" if (index + 1) % PERIOD else "full_attention"
            for index in range(num_layers)
        ]
    kinds[-1] = "full_attention"
    return kinds


def _shape(config: dict[str, Any], kind: str) -> tuple[int, int]:
    heads = positive_integer(config, "num_key_value_heads")
    if kind != "full_attention":
        return heads, positive_integer(config, "head_dim")
    if config.get("attention_k_eq_v"):
        heads = int(config.get("num_global_key_value_heads") or heads)
    return heads, int(config.get("global_head_dim") or GLOBAL_HEAD_DIM)


GEMMA4: Family = replace(
    TRANSFORMERS_PAGED,
    name="Gemma 4 (text)",
    model_types=("gemma4", "gemma4_text"),
    read_config=read_gemma4,
)
