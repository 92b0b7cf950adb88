"""Decoders that transformers has and no family here: run as its own modules behind our paged
attention. See ``inference.models.transformers_backend``.

Which of them run is a list, not a guess: each was held against transformers' own answers. What
memory they take is read from config.json, and the module is held against it before weights are.
"""

from __future__ import annotations

from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.hub_config import (
    Json,
    generation_facts,
    optional_size,
    positive_integer,
    rope_parameters,
)
from inference.models.families.module_numbers import check_numbers
from inference.models.families.nested import LEFT_OUT, hub_name
from inference.models.families.transformers_types import PAGED_TYPES
from inference.protocol.load_errors import BadFileError

NAMES = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model", "embedding_dim"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim"),
}
"""What sizes are called in config.json."""
CHANGING_ROPES = frozenset({"dynamic", "longrope"})
"""Whose angles follow the longest sequence of a batch."""
KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    _check_layers(config)
    check_rope(config)
    check_numbers(config)
    hidden_size, num_heads = _size(config, "hidden_size"), _size(config, "num_heads")
    return ModelConfig(
        architecture=str(config["model_type"]),
        vocab_size=positive_integer(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(config, 4 * hidden_size),
        num_layers=_size(config, "num_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, num_heads),
        head_dim=_head_dim(config, hidden_size, num_heads),
        max_positions=_size(config, "max_positions"),
        rms_norm_eps=0.0,
        rope_theta=0.0,
        # Its weights are not quantised any more when the module gets them.
        module_config={key: config[key] for key in config if key != "quantization_config"},
        **generation_facts(config, generation),
    )


def _check_layers(config: Json) -> None:
    if config.get("is_encoder_decoder"):
        raise BadFileError("models with an encoder are not supported")
    if unknown := sorted(set(config.get("layer_types") or ()) - KNOWN_LAYERS):
        raise BadFileError(
            f"layers of the type {unknown[0]!r} are not supported; this build runs "
            f"{' and '.join(sorted(KNOWN_LAYERS))}"
        )


def check_rope(config: Json) -> None:
    """Raises ``BadFileError``."""
    rope: Any = rope_parameters(config)
    by_kind = [inner for inner in rope.values() if isinstance(inner, dict)]
    for inner in (rope, *by_kind):
        kind = inner.get("rope_type", inner.get("type"))
        if kind in CHANGING_ROPES:
            raise BadFileError(
                f"rope scaling {kind!r} is not supported: its angles follow the longest sequence "
                "of a batch"
            )


def _num_kv_heads(config: Json, num_heads: int) -> int:
    """Returns the number of KV heads. With latent attention every head gets keys of its own."""
    if config.get("kv_lora_rank") or config.get("multi_query"):
        return 1 if config.get("multi_query") else num_heads
    return optional_size(config, "num_key_value_heads", num_heads)


def _head_dim(config: Json, hidden_size: int, num_heads: int) -> int:
    if config.get("kv_lora_rank"):
        return positive_integer(config, "qk_nope_head_dim") + positive_integer(
            config, "qk_rope_head_dim"
        )
    return optional_size(config, "head_dim", hidden_size // num_heads)


def _size(config: Json, name: str) -> int:
    """Raises ``BadFileError``."""
    found = next((key for key in NAMES[name] if config.get(key)), NAMES[name][0])
    return positive_integer(config, found)


def _intermediate_size(config: Json, default: int) -> int:
    """Raises ``BadFileError``."""
    found = next((key for key in NAMES["intermediate_size"] if config.get(key)), None)
    return default if found is None else positive_integer(config, found)


TRANSFORMERS_PAGED = Family(
    name="transformers' own modules",
    model_types=tuple(PAGED_TYPES),
    read_config=read_config,
    # Only transformers knows what its modules' tensors are called: they are missed at the load.
    tensors=lambda config: (),
    hub_name=hub_name,
    left_out=LEFT_OUT,
    uses_transformers=True,
    learns="inference.models.transformers_backend.model:checked_config",
    builder="inference.models.transformers_backend.model:TransformersModel",
)
