"""Reads what families share in config.json and generation_config.json. Functions here raise
``BadFileError``.

A checkpoint may nest the text model beside towers for images or audio: config.json has it under
``text_config``, and its tensors are called ``language_model.*``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

from inference.models.config import MixerKind, ModelConfig, RopeScaling
from inference.protocol.load_errors import BadFileError

LAYER_TYPES: dict[str, MixerKind] = {
    "full_attention": "attention",
    "sliding_attention": "sliding",
}

Json = Mapping[str, Any]


def read_decoder(config: Json, generation: Json, **declared: Any) -> ModelConfig:
    """``declared``: fields of ``ModelConfig`` that override the common keys."""
    num_heads = positive_integer(config, "num_attention_heads")
    hidden_size = positive_integer(config, "hidden_size")
    max_positions = positive_integer(config, "max_position_embeddings")
    rope = rope_parameters(config)
    scaling = rope_scaling(rope, max_positions)
    common: dict[str, Any] = {
        "architecture": str(config["model_type"]),
        "vocab_size": positive_integer(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": positive_integer(config, "intermediate_size"),
        "num_layers": positive_integer(config, "num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": optional_size(config, "num_key_value_heads", num_heads),
        "head_dim": optional_size(config, "head_dim", hidden_size // num_heads),
        "max_positions": extended_positions(max_positions, scaling),
        "rms_norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "rope_theta": float(rope.get("rope_theta") or 10000.0),
        "rope_scaling": scaling,
        "tie_embeddings": bool(config.get("tie_word_embeddings", False)),
        **generation_facts(config, generation),
    }
    return ModelConfig(**(common | declared))


LLAMA_BIASES = {
    "qkv_bias": "attention_bias",
    "output_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
}


def read_llama(
    config: Json,
    generation: Json,
    *,
    defaults: Json | None = None,
    biases: Mapping[str, str] = LLAMA_BIASES,
    **declared: Any,
) -> ModelConfig:
    """SiLU, and heads rotated whole. ``defaults``: what config.json may leave out."""
    config = {**(defaults or {}), **config}
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    has = {field: bool(config.get(key, False)) for field, key in biases.items()}
    return read_decoder(config, generation, **has | declared)


def generation_facts(config: Json, generation: Json) -> dict[str, Any]:
    return {
        "bos_token_id": next(iter(_ids("bos_token_id", config, generation)), None),
        "eos_token_ids": _ids("eos_token_id", generation, config),
        "generation_defaults": generation_defaults(generation),
        "unused_defaults": unused_defaults(generation),
    }


def extended_positions(declared: int, scaling: RopeScaling | None) -> int:
    """YaRN's reach is its factor times the trained length, which files often do not declare."""
    if scaling is None or scaling.kind != "yarn":
        return declared
    if not (math.isfinite(scaling.factor) and scaling.factor > 0):
        raise BadFileError(
            f"the factor of rope scaling yarn is {scaling.factor}, not a finite number above 0"
        )
    return max(declared, int(scaling.factor * scaling.original_max_positions))


def check_activation(config: Json, *known: str, key: str = "hidden_act") -> None:
    """The first of ``known`` is the default."""
    activation = config.get(key) or known[0]
    if activation not in known:
        raise BadFileError(f"{key} {activation!r} is not supported; this build runs {known[0]}")


def check_whole_rotary(config: Json) -> None:
    if _rotary_factor(config, 1.0) != 1.0:
        raise BadFileError("partial_rotary_factor other than 1.0 is not supported")


def check_no_window(config: Json) -> None:
    if config.get("use_sliding_window"):
        raise BadFileError("a sliding window on some of the layers is not supported")


def rotary_dim(config: Json, default: float = 1.0) -> int:
    """``default``: the rotated share where none is declared."""
    heads = positive_integer(config, "num_attention_heads")
    width = int(config.get("head_dim") or positive_integer(config, "hidden_size") // heads)
    return int(width * _rotary_factor(config, default))


def _rotary_factor(config: Json, default: float) -> float:
    """transformers 5 writes it into ``rope_parameters``; before it, it stood beside them."""
    inner = (config.get("rope_parameters") or {}).get("partial_rotary_factor")
    return float(inner or config.get("partial_rotary_factor") or default)


def repeated(
    num_layers: int,
    period: int,
    *,
    others: MixerKind = "sliding",
    last: MixerKind = "attention",
) -> tuple[MixerKind, ...]:
    """Every ``period``-th layer is of the kind ``last``."""
    return tuple(others if (index + 1) % period else last for index in range(num_layers))


def kinds_of_layers(config: Json, default: tuple[MixerKind, ...]) -> tuple[MixerKind, ...]:
    listed = config.get("layer_types")
    if not listed:
        return default
    if unknown := sorted(set(listed) - LAYER_TYPES.keys()):
        raise BadFileError(f"layers of the type {unknown[0]!r} are not supported")
    return tuple(LAYER_TYPES[name] for name in listed)


def listed_mixers(config: Json, kinds: Mapping[str, MixerKind]) -> tuple[MixerKind, ...] | None:
    """``None``: config.json lists none."""
    num_layers, listed = positive_integer(config, "num_hidden_layers"), config.get("layer_types")
    if listed is None:
        return None
    if len(listed) != num_layers or not set(listed) <= kinds.keys():
        raise BadFileError(f"layer_types is not {num_layers} times one of {', '.join(kinds)}")
    return tuple(kinds[name] for name in listed)


def same_in_all_layers(config: Json, key: str) -> Any:
    """Raises ``BadFileError`` where a list has different values."""
    listed = config.get(key)
    if not isinstance(listed, list):
        return listed
    if not listed or any(value != listed[0] for value in listed):
        raise BadFileError(f"layers that differ in {key} are not supported")
    return listed[0]


def optional_number(config: Json, key: str) -> float | None:
    value = config.get(key)
    return None if value is None else float(value)


def check_dense(config: Json) -> None:
    """Raises ``BadFileError``."""
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown")
        raise BadFileError(
            f"the weights are quantised with {method!r}, which is not read here; use the dense "
            "safetensors of the same model, or a GGUF"
        )


def rope_parameters(config: Json) -> Json:
    """transformers 5 writes ``rope_parameters`` with the base inside; before it, ``rope_theta``
    stood beside ``rope_scaling``."""
    parameters = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    parameters.setdefault("rope_theta", config.get("rope_theta"))
    if original := config.get("original_max_position_embeddings"):
        parameters.setdefault("original_max_position_embeddings", original)
    return parameters


def rope_by_kind(config: Json) -> tuple[Json, float | None]:
    """Returns also the base of sliding layers, where it is declared for each kind of layer."""
    rope = config.get("rope_parameters") or {}
    if "full_attention" not in rope:
        return config, None
    local = rope.get("sliding_attention") or {}
    if local.get("rope_type", "default") != "default":
        raise BadFileError("rope scaling of sliding layers is not supported")
    theta = local.get("rope_theta")
    config = {**config, "rope_parameters": rope["full_attention"], "rope_scaling": None}
    return config, None if theta is None else float(theta)


def rope_scaling(rope: Json, max_positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind in ("longrope", "su"):
        return _longrope(rope, max_positions)
    if kind not in ("linear", "llama3", "yarn"):
        raise BadFileError(
            f"rope scaling {kind!r} is not supported; known: linear, llama3, yarn, longrope"
        )
    return RopeScaling(
        kind=cast(Literal["linear", "llama3", "yarn"], kind),
        factor=float(rope["factor"]),
        low_freq_factor=float(rope.get("low_freq_factor") or 1.0),
        high_freq_factor=float(rope.get("high_freq_factor") or 4.0),
        original_max_positions=int(rope.get("original_max_position_embeddings") or max_positions),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        attention_factor=_attention_factor(rope),
        truncates=bool(rope.get("truncate", True)),
    )


def _attention_factor(rope: Json) -> float | None:
    """DeepSeek gives two factors of the logarithm: cosines and sines get their ratio."""
    factor = rope.get("attention_factor")
    if factor is not None:
        return float(factor)
    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    if not above or not below:
        return None
    return yarn_attention_factor(float(rope["factor"]), float(above), float(below))


def yarn_attention_factor(factor: float, above: float, below: float) -> float:
    logarithm = 0.1 * math.log(max(factor, 1.0))
    return (above * logarithm + 1.0) / (below * logarithm + 1.0)


def _longrope(rope: Json, max_positions: int) -> RopeScaling:
    short, long = rope.get("short_factor"), rope.get("long_factor")
    if not short or not long or len(short) != len(long):
        raise BadFileError("rope scaling 'longrope' wants short_factor and long_factor")
    original = positive_integer(rope, "original_max_position_embeddings")
    factor = rope.get("attention_factor")
    return RopeScaling(
        kind="longrope",
        factor=float(rope.get("factor") or max_positions / original),
        original_max_positions=original,
        attention_factor=None if factor is None else float(factor),
        short_divisors=tuple(map(float, short)),
        long_divisors=tuple(map(float, long)),
    )


def positive_integer(config: Json, key: str) -> int:
    """Raises ``BadFileError``."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise BadFileError(f"config.json: {key} is {value!r}, not a positive whole number")
    return value


def optional_size(config: Json, key: str, default: int) -> int:
    """Returns ``default`` for 0, too."""
    return positive_integer(config, key) if config.get(key) else default


def _ids(key: str, first: Json, second: Json) -> tuple[int, ...]:
    value = first.get(key, second.get(key))
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if any(not isinstance(one, int) or isinstance(one, bool) for one in ids):
        raise BadFileError(f"{key} is {value!r}, which cannot be read as a token id, or several")
    return tuple(ids)


BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, math.inf),
}
"""A file may go beyond what clients may ask for, but not beyond what has a meaning."""

NEUTRAL: dict[str, Any] = {
    "general.sampling.sequence": "",
    "general.sampling.xtc_probability": 0,
    "general.sampling.mirostat": 0,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
}
"""Defaults that no sampler here computes, with the value that changes nothing. What only tunes one
of them (``mirostat_tau``) is not listed."""


def generation_defaults(
    given: Mapping[str, Any], keys: Mapping[str, str] | None = None
) -> dict[str, float | int]:
    """``keys``: names in ``given`` -> those of ``BOUNDS``. Raises ``BadFileError``."""
    names = keys or {name: name for name in BOUNDS}
    found = {
        name: _checked(key, given[key], *BOUNDS[name])
        for key, name in names.items()
        if given.get(key) is not None
    }
    return {name: _whole(value) if name == "top_k" else value for name, value in found.items()}


def unused_defaults(given: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{key} {given[key]!r}"
        for key, neutral in NEUTRAL.items()
        if given.get(key) is not None and given[key] != neutral
    )


def _checked(key: str, value: Any, least: float, most: float) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFileError(f"the model's default {key} is {value!r}, not a number")
    if not (least <= value <= most and value < math.inf):
        bounds = f"from {least:g} up" if most == math.inf else f"from {least:g} to {most:g}"
        raise BadFileError(f"the model's default {key} is {value!r}; it has to be {bounds}")
    return value


def _whole(value: float) -> int:
    """Some files write 50.0, and -1 for as many as there are."""
    if value != int(value):
        raise BadFileError(f"the model's default top_k is {value!r}, not a whole number")
    return max(0, int(value))


OUTER = ("eos_token_id", "bos_token_id", "tie_word_embeddings")
"""Keys of the outer config that hold for the text model."""
NESTED = ("language_model.model.", "model.language_model.", "model.text_model.")
"""Prefixes of the text model's names, in older and newer checkpoints, and in Idefics3's."""
LEFT_OUT = {
    f"{prefix}{name}.": purpose
    for prefix in ("", "model.")
    for name, purpose in (
        ("vision_tower", "images"),
        ("vision_model", "images"),
        ("vision_encoder", "images"),
        ("multi_modal_projector", "images"),
        ("embed_vision", "images"),
        ("vision_embedder", "images"),
        ("audio_tower", "audio"),
        ("audio_encoder", "audio"),
        ("embed_audio", "audio"),
    )
}


def hub_name(name: str) -> str:
    for nested in NESTED:
        if name.startswith(nested):
            return "model." + name.removeprefix(nested)
    return name.removeprefix("language_model.")


def text_config(config: Json, defaults: Json) -> dict[str, Any]:
    """``defaults``: of the library that wrote the config, which leaves out equal values."""
    if (nested := config.get("text_config")) is None:
        return dict(config)
    ends = {key: config[key] for key in OUTER if key in config}
    return {**defaults, **ends, **nested}
