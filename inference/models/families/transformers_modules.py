"""Decoders that ``inference.models.transformers_backend`` runs, as no family here does.

TRANSFORMERS_PAGED: all layers attend through transformers' attention interface, over our paged
attention. TRANSFORMERS_CACHED: others, with transformers' own cache over our blocks and state
slots, whose contents are detected from the module without its weights.

The types are a list, not a guess: each was compared with transformers' answers. Some GGUF
architectures are read by transformers as well, dequantised; metadata that its reader passes over
and that change the answer are added here.
"""

from __future__ import annotations

import math
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, rope_scaling
from inference.models.families.gguf_numbers import check_computed
from inference.models.families.hub_config import (
    LEFT_OUT,
    OUTER,
    Json,
    generation_facts,
    hub_name,
    optional_size,
    positive_integer,
    rope_parameters,
)
from inference.models.families.transformers_types import CACHED_TYPES, NESTED_TYPES, PAGED_TYPES
from inference.protocol.load_errors import BadFileError

NAMES = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model", "embedding_dim"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim"),
}
CHANGING_ROPES = frozenset({"dynamic", "longrope"})
KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})


def read_paged(config: Json, generation: Json) -> ModelConfig:
    _check_no_encoder(config)
    _check_layers(config)
    check_rope(config)
    check_numbers(config)
    hidden_size, num_heads = _size(config, "hidden_size"), _size(config, "num_heads")
    return _module(
        config,
        generation,
        architecture=str(config["model_type"]),
        vocab_size=positive_integer(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(config, 4 * hidden_size),
        num_layers=_size(config, "num_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, num_heads),
        head_dim=_head_dim(config, hidden_size, num_heads),
        max_positions=_size(config, "max_positions"),
    )


def _module(config: Json, generation: Json, *left_out: str, **sizes: Any) -> ModelConfig:
    """``left_out``: keys that the module does not get. Its weights come dense."""
    left_out = ("quantization_config", *left_out)
    return ModelConfig(
        rms_norm_eps=0.0,
        rope_theta=0.0,
        module_config={key: config[key] for key in config if key not in left_out},
        **sizes,
        **generation_facts(config, generation),
    )


def _check_no_encoder(config: Json) -> None:
    if config.get("is_encoder_decoder"):
        raise BadFileError("models with an encoder are not supported")


def _check_layers(config: Json) -> None:
    if unknown := sorted(set(config.get("layer_types") or ()) - KNOWN_LAYERS):
        raise BadFileError(
            f"layers of the type {unknown[0]!r} are not supported; this build runs "
            f"{' and '.join(sorted(KNOWN_LAYERS))}"
        )


def check_rope(config: Json) -> None:
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
    """With latent attention every head gets keys of its own."""
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
    found = next((key for key in NAMES[name] if config.get(key)), NAMES[name][0])
    return positive_integer(config, found)


def _intermediate_size(config: Json, default: int) -> int:
    found = next((key for key in NAMES["intermediate_size"] if config.get(key)), None)
    return default if found is None else positive_integer(config, found)


TRANSFORMERS_PAGED = Family(
    model_types=tuple(PAGED_TYPES),
    read_config=read_paged,
    hub_name=hub_name,
    left_out=LEFT_OUT,
    uses_transformers=True,
    detector="inference.models.transformers_backend.model:checked_config",
    builder="inference.models.transformers_backend.model:TransformersModel",
)


EPSILONS = ("eps", "epsilon")


def check_numbers(config: Json, of: str = "") -> None:
    """transformers accepts NaN, and some modules then answer with it. Infinity is allowed in lists,
    where it ends an open range."""
    for key, value in config.items():
        if isinstance(value, dict) and "__float__" not in value:
            check_numbers(value, f"{of}{key}.")
        elif problem := _problem(key, value):
            raise BadFileError(f"config.json: {of}{key} is {value!r}, not {problem}")


def _problem(key: str, value: Any) -> str | None:
    listed = value if isinstance(value, list) else [value]
    numbers = [number for one in listed if (number := _number(one)) is not None]
    if any(math.isnan(number) for number in numbers):
        return "a number"
    if any(map(math.isinf, numbers)) and not isinstance(value, list):
        return "a finite number"
    if key.endswith(EPSILONS) and any(number < 0 for number in numbers):
        return "a number from 0 up"
    return None


def _number(value: Any) -> float | None:
    """transformers writes numbers that JSON lacks its own way."""
    match value:
        case bool():
            return None
        case int() | float():
            return float(value)
        case {"__float__": str(word)}:
            return float(word)
    return None


def read_cached(config: Json, generation: Json) -> ModelConfig:
    """Sizes that config.json leaves out are 1 until the module is inspected."""
    architecture = str(config["model_type"])
    if (nested := NESTED_TYPES.get(architecture)) is not None:
        config, architecture = _text_config(config), nested
    _check_no_encoder(config)
    check_rope(config)
    check_numbers(config)
    sizes = {name: _optional_size(config, name) for name in NAMES if name != "vocab_size"}
    return _module(
        config,
        generation,
        "model_type",
        architecture=architecture,
        vocab_size=positive_integer(config, "vocab_size") if "vocab_size" in config else 1,
        num_kv_heads=sizes["num_heads"],
        head_dim=max(1, sizes["hidden_size"] // sizes["num_heads"]),
        **sizes,
    )


def _text_config(config: Json) -> Json:
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise BadFileError(f"config.json of a {config['model_type']} has no text_config")
    return {**{key: config[key] for key in OUTER if key in config}, **text}


def _optional_size(config: Json, name: str) -> int:
    """1 where config.json has none, or one for each layer."""
    given = (key for key in NAMES[name] if not isinstance(config.get(key), list | None))
    found = next((key for key in given if config[key] != 0), None)
    return 1 if found is None else positive_integer(config, found)


TRANSFORMERS_CACHED = Family(
    model_types=(*CACHED_TYPES, *NESTED_TYPES),
    read_config=read_cached,
    hub_name=hub_name,
    left_out={**LEFT_OUT, "model.visual.": "images"},
    uses_transformers=True,
    detector="inference.models.transformers_backend.detection:detected_config",
    builder="inference.models.transformers_backend.cached_model:CachedModel",
)


MODULES: dict[str, str] = {
    "bloom": "bloom",
    "falcon": "falcon",
    "gpt2": "gpt2",
    "mamba": "mamba",
    "nemotron": "nemotron",
    "stablelm": "stablelm",
}
"""``general.architecture`` -> ``model_type``."""


READ_ELSEWHERE = frozenset(
    {
        "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon",
        "attention.max_alibi_bias",
        "rope.dimension_count",
        "rope.freq_base",
    }
)
"""Keys that transformers' reader or this file reads, or whose number a module has too."""


def check_module_keys(keys: GGUFKeys, config: ModelConfig) -> None:
    """Raises ``BadFileError`` for a key that changes numbers and is not read."""
    if rope_scaling(keys, config.max_positions) is not None:
        raise BadFileError(
            f"rope scaling ({keys.architecture}.rope.scaling.factor, rope.scaling.type or "
            f"rope.scale_linear) is not read from a GGUF of {keys.architecture}"
        )
    is_stablelm = keys.architecture == "stablelm"
    own = READ_ELSEWHERE | {"use_parallel_residual"} if is_stablelm else READ_ELSEWHERE
    check_computed(keys, config, but=own)


def added_by_metadata(keys: GGUFKeys) -> dict[str, Any]:
    """Raises ``BadFileError``."""
    eps = keys.number("attention.layer_norm_epsilon", 1e-5)
    match keys.architecture:
        case "falcon":
            return _rotary(keys) | _falcon_heads(keys) | {"layer_norm_epsilon": eps}
        case "nemotron":
            return _rotary(keys) | {"norm_eps": eps}
        case "stablelm":
            is_parallel = keys.metadata.get("stablelm.use_parallel_residual", False)
            return _rotary(keys) | {"use_parallel_residual": bool(is_parallel)}
        case "gpt2":
            return {"n_positions": keys.integer("context_length")}
        case "bloom":
            return {"seq_length": keys.integer("context_length")}
    return {}


def _rotary(keys: GGUFKeys) -> dict[str, Any]:
    head_dim = keys.integer("embedding_length") // keys.integer("attention.head_count")
    rotated = keys.integer("rope.dimension_count", head_dim)
    theta = keys.metadata.get(f"{keys.architecture}.rope.freq_base", 10_000.0)
    return {"rope_theta": theta, "partial_rotary_factor": rotated / head_dim}


def _falcon_heads(keys: GGUFKeys) -> dict[str, Any]:
    """The newer layout has a norm of its own for the MLP, or several heads of keys."""
    num_kv_heads = keys.integer("attention.head_count_kv", 1)
    is_new = "blk.0.attn_norm_2.weight" in keys.shapes or num_kv_heads > 1
    return {
        "new_decoder_architecture": is_new,
        "multi_query": num_kv_heads == 1,
        "num_kv_heads": num_kv_heads,
    }
