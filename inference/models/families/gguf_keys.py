"""Reads what families share in a GGUF file's metadata. Keys and conventions: llama.cpp's
gguf-py/gguf/constants.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.models.config import MixerKind, ModelConfig, RopeScaling
from inference.models.families.hub_config import (
    extended_positions,
    generation_defaults,
    repeated,
    unused_defaults,
    yarn_attention_factor,
)
from inference.protocol.load_errors import BadFileError

END_OF_TURN_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>")
"""Files of base models name only the end of text; a chat template ends its turns with these."""
CHANNEL = "<|channel|>"
END_OF_CHANNELS_TOKENS = ("<|return|>", "<|call|>")
"""The ends of an answer in channels (gpt-oss), where ``<|end|>`` ends a thought."""

SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}

NO_FACTORS = (0.0, 1.0)
PREDICTING_LAYERS = "nextn_predict_layers"
ROPE_FREQUENCIES = "rope_freqs.weight"
"""The tensor that is not a weight but a rule: it becomes ``RopeScaling``."""


@dataclass(frozen=True, slots=True)
class GGUFKeys:
    metadata: Mapping[str, Any]
    architecture: str
    shapes: Mapping[str, tuple[int, ...]]
    """By GGUF name; row-major, as torch has them."""
    rope_divisors: Sequence[float] | None = None
    """The numbers of ``ROPE_FREQUENCIES``, one for each frequency."""

    def find(self, key: str) -> int | None:
        """Returns ``None`` for 0, too."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or value < 0:
            raise BadFileError(f"{self.architecture}.{key} is {value!r}, not a whole number")
        return value or None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.find(key) or default
        if value is None:
            raise BadFileError(f"the GGUF metadata lacks {self.architecture}.{key}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float):
            raise BadFileError(f"{self.architecture}.{key} is {value!r}, not a number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        return str(self.metadata.get(f"{self.architecture}.{key}", default))

    def layers_before_predictors(self) -> int:
        """Predicting layers come last, and are left out."""
        return self.integer("block_count") - (self.find(PREDICTING_LAYERS) or 0)

    def heads_of_keys(self) -> int:
        """For files that list KV heads by layer."""
        name = next((name for name in self.shapes if name.endswith(".attn_k.weight")), None)
        if name is None:
            return self.integer("attention.head_count")
        return self.shapes[name][0] // head_dim(self)

    def has_tensor(self, name: str) -> bool:
        return name in self.shapes


def read_decoder_gguf(
    keys: GGUFKeys,
    model_type: str,
    *,
    is_windowed: bool = False,
    is_rotated_in_part: bool = False,
    **declared: Any,
) -> ModelConfig:
    """``is_windowed``: the declared window is of all layers. ``is_rotated_in_part``: the file
    declares how much of each head is rotated. ``declared``: fields of ``ModelConfig`` that override
    the common keys."""
    eps = "layer_norm_epsilon" if declared.get("norm") == "layer" else "layer_norm_rms_epsilon"
    default_eps = 1e-5 if declared.get("norm") == "layer" else 1e-6
    hidden_size = keys.integer("embedding_length")
    num_heads = keys.integer("attention.head_count")
    max_positions = keys.integer("context_length")
    scaling = rope_scaling(keys, max_positions)
    common: dict[str, Any] = {
        "architecture": model_type,
        "vocab_size": _vocab_size(keys),
        "hidden_size": hidden_size,
        "num_layers": keys.integer("block_count"),
        "num_heads": num_heads,
        "head_dim": head_dim(keys),
        "max_positions": extended_positions(max_positions, scaling),
        "rms_norm_eps": keys.number(f"attention.{eps}", default_eps),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "rope_scaling": scaling,
        "attention_scale": keys.number("attention.scale", 0.0) or None,
        "attention_soft_cap": keys.number("attn_logit_softcapping", 0.0) or None,
        "logit_soft_cap": keys.number("final_logit_softcapping", 0.0) or None,
        "embedding_multiplier": keys.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": keys.number("residual_scale", 0.0) or 1.0,
        "tie_embeddings": not keys.has_tensor("output.weight"),
        "qkv_bias": keys.has_tensor("blk.0.attn_q.bias"),
        "output_bias": keys.has_tensor("blk.0.attn_output.bias"),
        "mlp_bias": keys.has_tensor("blk.0.ffn_up.bias"),
        "qk_norm": keys.has_tensor("blk.0.attn_q_norm.weight"),
        **text_facts(keys.metadata),
    }
    if is_windowed:
        common["sliding_window"] = keys.find("attention.sliding_window")
    if is_rotated_in_part:
        common["rotary_dim"] = keys.integer("rope.dimension_count", head_dim(keys))
    if "num_kv_heads" not in declared:
        common["num_kv_heads"] = keys.integer("attention.head_count_kv", num_heads)
    if "intermediate_size" not in declared:
        common["intermediate_size"] = keys.integer("feed_forward_length")
    return ModelConfig(**(common | declared))


def text_facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``ModelConfig``. Raises ``BadFileError``."""
    return {
        "bos_token_id": _token_id(metadata, "bos"),
        "eos_token_ids": _end_of_sequence_ids(metadata),
        "generation_defaults": generation_defaults(metadata, SAMPLING_KEYS),
        "unused_defaults": unused_defaults(metadata),
    }


def head_dim(keys: GGUFKeys) -> int:
    default = keys.integer("embedding_length") // keys.integer("attention.head_count")
    return keys.integer("attention.key_length", default)


def windowed_layers(
    keys: GGUFKeys, period: int, *, last: MixerKind = "attention"
) -> tuple[MixerKind, ...]:
    """The file lists the layers with a window, or overrides the architecture's period."""
    num_layers = keys.integer("block_count")
    key = f"{keys.architecture}.attention.sliding_window_pattern"
    pattern = keys.metadata.get(key, period)
    if isinstance(pattern, int) and pattern > 0:
        return repeated(num_layers, pattern, last=last)
    if not isinstance(pattern, list) or len(pattern) != num_layers:
        raise BadFileError(f"{key} is {pattern!r}, neither a period nor a list of all layers")
    return tuple("sliding" if has_window else last for has_window in pattern)


def rope_scaling(keys: GGUFKeys, max_positions: int) -> RopeScaling | None:
    """No type means linear. Raises ``BadFileError`` for an unknown rule."""
    _check_rope_factors(keys)
    kind = keys.text("rope.scaling.type", "linear")
    declared = f"{keys.architecture}.rope.scaling.factor" in keys.metadata
    factor_key = "rope.scaling.factor" if declared else "rope.scale_linear"  # the old name
    factor = keys.number(factor_key, 1.0)
    if keys.rope_divisors is not None:
        if kind not in ("none", "llama3") and (kind != "linear" or factor not in NO_FACTORS):
            key = factor_key if kind == "linear" else "rope.scaling.type"
            raise BadFileError(
                f"rope scaling {kind!r} ({keys.architecture}.{key}) beside the tensor "
                f"{ROPE_FREQUENCIES} is not supported"
            )
        return _llama3_scaling(keys, keys.rope_divisors)
    original = keys.integer("rope.scaling.original_context_length", max_positions)
    if kind == "none" or (kind == "linear" and factor in NO_FACTORS):
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor, original_max_positions=original)
    if kind == "llama3":
        raise BadFileError(
            f"rope scaling 'llama3' is read from the tensor {ROPE_FREQUENCIES}, which the file "
            "lacks: its metadata does not hold the whole rule; convert the model anew"
        )
    if kind != "yarn":
        raise BadFileError(
            f"rope scaling {kind!r} is not supported; known: linear, yarn, and llama3 by the "
            f"tensor {ROPE_FREQUENCIES}"
        )
    below = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_positions=original,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=yarn_attention_factor(factor, 1.0, below) if below else None,
    )


def _check_rope_factors(keys: GGUFKeys) -> None:
    is_yarn = keys.text("rope.scaling.type", "linear") == "yarn"
    for key, neutral in {
        "alpha": (0.0, 1.0),
        "attn_factor": (0.0, 1.0),
        "yarn_attn_factor": (0.0, 1.0),
        "yarn_ext_factor": (-1.0, 1.0) if is_yarn else (-1.0, 0.0),
    }.items():
        key = f"rope.scaling.{key}"
        if (value := keys.number(key, neutral[1])) not in neutral:
            raise BadFileError(
                f"{keys.architecture}.{key} is {value:g}; other than {neutral[1]:g} is not "
                "supported"
            )


def _llama3_scaling(keys: GGUFKeys, divisors: Sequence[float]) -> RopeScaling:
    """The file holds each frequency's divisor instead of the rule that made them. The largest is
    the rule's factor; the other numbers are Llama 3's, and are proved by computing the divisors."""
    scaling = RopeScaling(
        kind="llama3",
        factor=round(max(divisors), 3),  # as written before float32
        original_max_positions=keys.integer("rope.scaling.original_context_length", 8192),
    )
    base = keys.number("rope.freq_base", 10000.0)
    count = len(divisors)
    expected = [_llama3_divisor(2 * math.pi * base ** (i / count), scaling) for i in range(count)]
    if not all(math.isclose(*pair, rel_tol=1e-3) for pair in zip(divisors, expected, strict=True)):
        raise BadFileError(f"{ROPE_FREQUENCIES} does not follow the Llama 3 rule")
    return scaling


def _llama3_divisor(wavelength: float, scaling: RopeScaling) -> float:
    rotations = scaling.original_max_positions / wavelength
    if rotations > scaling.high_freq_factor:
        return 1.0
    if rotations < scaling.low_freq_factor:
        return scaling.factor
    smooth = (rotations - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return 1.0 / ((1.0 - smooth) / scaling.factor + smooth)


def _vocab_size(keys: GGUFKeys) -> int:
    shape = keys.shapes.get("token_embd.weight")
    if shape is None:
        raise BadFileError("the GGUF file lacks the tensor token_embd.weight")
    return shape[0]


def _token_id(metadata: Mapping[str, Any], kind: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{kind}_token_id")
    return value if isinstance(value, int) else None


def _end_of_sequence_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    declared = [_token_id(metadata, kind) for kind in ("eos", "eot", "eom")]
    tokens = metadata.get("tokenizer.ggml.tokens")
    tokens = tokens if isinstance(tokens, list) else []
    names = END_OF_CHANNELS_TOKENS if CHANNEL in tokens else END_OF_TURN_TOKENS
    by_name = [tokens.index(token) for token in names if token in tokens]
    found = [token_id for token_id in declared if token_id is not None] + by_name
    return tuple(dict.fromkeys(found))
