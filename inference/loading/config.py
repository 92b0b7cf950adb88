"""``ModelConfig`` from a Hugging Face directory: config.json and generation_config.json.

Refuses what the families here would compute wrongly; nothing in a config that changes the result
is passed over. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from inference.loading.errors import BadFileError, MissingFileError, UnknownArchitectureError
from inference.models.config import ModelConfig, RopeScaling

KNOWN_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")

GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Keys of generation_config.json that clients can also set, spelt as in ``SamplingOptions``."""

Json = Mapping[str, Any]


def check_architecture(architecture: str) -> None:
    """Raises ``UnknownArchitectureError``, naming the known ones."""
    if architecture not in KNOWN_ARCHITECTURES:
        known = ", ".join(KNOWN_ARCHITECTURES)
        raise UnknownArchitectureError(
            f"the model's architecture is {architecture!r}; this build runs {known}"
        )


def read_directory_config(directory: Path) -> ModelConfig:
    """Raises ``MissingFileError``, ``BadFileError``, ``UnknownArchitectureError``."""
    config = read_json(directory / "config.json")
    generation_path = directory / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    return parse_config(config, generation)


def read_json(path: Path) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingFileError(f"{path.name} is not in {path.parent}") from None
    except ValueError as error:
        raise BadFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadFileError(f"{path} does not hold a JSON object")
    return content


def parse_config(config: Json, generation: Json) -> ModelConfig:
    """``config`` and ``generation`` are config.json and generation_config.json, parsed."""
    architecture = str(config.get("model_type"))
    check_architecture(architecture)
    _refuse_unsupported(config)
    num_heads = positive_integer(config, "num_attention_heads")
    hidden_size = positive_integer(config, "hidden_size")
    rope = _rope_parameters(config)
    scaling = _rope_scaling(rope, positive_integer(config, "max_position_embeddings"))
    attention_bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        vocab_size=positive_integer(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=positive_integer(config, "intermediate_size"),
        num_layers=positive_integer(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden_size // num_heads),
        max_positions=extended_positions(
            positive_integer(config, "max_position_embeddings"), scaling
        ),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or 10000.0),
        rope_scaling=scaling,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or architecture == "qwen2",
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=architecture == "qwen3",
        sliding_window=_sliding_window(config),
        bos_token_id=_first_id(config.get("bos_token_id", generation.get("bos_token_id"))),
        eos_token_ids=_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        generation_defaults={
            key: generation[key] for key in GENERATION_DEFAULTS if generation.get(key) is not None
        },
    )


def extended_positions(declared: int, scaling: RopeScaling | None) -> int:
    """YaRN's reach is its factor times the trained length, which files often do not declare."""
    if scaling is None or scaling.kind != "yarn":
        return declared
    return max(declared, int(scaling.factor * scaling.original_max_positions))


def _refuse_unsupported(config: Json) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise BadFileError(f"hidden_act {activation!r} is not supported; this build runs silu")
    check_dense(config)
    if float(config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise BadFileError("partial_rotary_factor other than 1.0 is not supported")


def check_dense(config: Json) -> None:
    """Raises ``BadFileError`` for safetensors that hold quantised weights."""
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown")
        raise BadFileError(
            f"the weights are quantised with {method!r}, which is not read here; use the dense "
            "safetensors of the same model, or a GGUF"
        )


def _rope_parameters(config: Json) -> Json:
    """transformers 5 writes ``rope_parameters`` with the base inside; before it, ``rope_theta``
    stood beside ``rope_scaling``."""
    parameters = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    parameters.setdefault("rope_theta", config.get("rope_theta"))
    if original := config.get("original_max_position_embeddings"):
        parameters.setdefault("original_max_position_embeddings", original)
    return parameters


def _rope_scaling(rope: Json, max_positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise BadFileError(f"rope scaling {kind!r} is not supported; known: linear, llama3, yarn")
    if refused := sorted({"mscale", "mscale_all_dim", "truncate"} & rope.keys()):
        raise BadFileError(f"rope scaling with {', '.join(refused)} is not supported")
    factor = rope.get("attention_factor")
    return RopeScaling(
        kind=cast(Literal["linear", "llama3", "yarn"], kind),
        factor=float(rope["factor"]),
        low_freq_factor=float(rope.get("low_freq_factor") or 1.0),
        high_freq_factor=float(rope.get("high_freq_factor") or 4.0),
        original_max_positions=int(rope.get("original_max_position_embeddings") or max_positions),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        attention_factor=None if factor is None else float(factor),
    )


def _sliding_window(config: Json) -> int | None:
    """One window for all layers, or none. qwen2 and qwen3 declare a window that only
    ``use_sliding_window`` switches on."""
    window = config.get("sliding_window")
    switched_off = config.get("model_type") != "mistral" and not config.get("use_sliding_window")
    if window is None or switched_off:
        return None
    kinds = set(config.get("layer_types") or ["sliding_attention"])
    if kinds == {"full_attention"}:
        return None
    if kinds != {"sliding_attention"} or config.get("max_window_layers"):
        raise BadFileError("a sliding window on some of the layers is not supported")
    return int(window)


def positive_integer(config: Json, key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise BadFileError(f"config.json: {key} is {value!r}, not a positive whole number")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    return tuple(int(token_id) for token_id in ids)


def _first_id(value: Any) -> int | None:
    return next(iter(_ids(value)), None)
