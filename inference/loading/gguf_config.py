"""``ModelConfig`` from a GGUF file's metadata, and its tensor names in Hugging Face's words.

Keys and conventions: llama.cpp's gguf-py/gguf/constants.py. Imports no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from inference.loading.config import check_architecture, extended_positions
from inference.loading.errors import BadFileError
from inference.loading.gguf_header import GGUFHeader, MetadataValue
from inference.models.config import ModelConfig, RopeScaling

END_OF_TURN_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>")
"""Files of base models name only the end of text; a chat template ends its turns with these."""

SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}

ROPE_FREQUENCIES = "rope_freqs.weight"

_MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)")


def hugging_face_name(name: str) -> str | None:
    """``blk.0.attn_q.weight`` -> ``model.layers.0.self_attn.q_proj.weight``; ``None`` for what the
    families here do not use."""
    stem, _, kind = name.rpartition(".")
    if match := _LAYER_NAME.fullmatch(stem):
        layer_name = _LAYER_NAMES.get(match[2])
        return layer_name and f"model.layers.{match[1]}.{layer_name}.{kind}"
    model_name = _MODEL_NAMES.get(stem)
    return model_name and f"{model_name}.{kind}"


def rotary_heads(name: str, config: ModelConfig) -> int | None:
    """How many heads' rows stand in GGUF's interleaved rotary order in the tensor of this Hugging
    Face name; ``None`` where rows are in their natural order. Only llama's files interleave."""
    if config.architecture != "llama":
        return None
    if ".self_attn.q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".self_attn.k_proj." in name else None


def read_gguf_config(header: GGUFHeader) -> ModelConfig:
    """Raises ``UnknownArchitectureError``, ``BadFileError``."""
    architecture = str(header.metadata.get("general.architecture"))
    check_architecture(architecture)
    keys = _Keys(header.metadata, architecture)
    if keys.find("expert_count"):
        raise BadFileError("mixture-of-experts weights under this architecture are not supported")
    hidden_size = keys.integer("embedding_length")
    num_heads = keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    if keys.integer("rope.dimension_count", head_dim) != head_dim:
        raise BadFileError("rotary embedding over a part of each head is not supported")
    max_positions = keys.integer("context_length")
    scaling = _rope_scaling(keys, header, max_positions)
    first_layer = header.tensors.keys() & {"blk.0.attn_output.bias", "blk.0.ffn_up.bias"}
    return ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(header),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=keys.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_positions=extended_positions(max_positions, scaling),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        rope_scaling=scaling,
        tie_embeddings="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in first_layer,
        mlp_bias="blk.0.ffn_up.bias" in first_layer,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        sliding_window=keys.find("attention.sliding_window"),
        bos_token_id=_token_id(header.metadata, "bos"),
        eos_token_ids=_end_of_sequence_ids(header.metadata),
        generation_defaults={
            ours: value
            for key, ours in SAMPLING_KEYS.items()
            if isinstance(value := header.metadata.get(key), int | float)
        },
    )


class _Keys:
    """Metadata under the architecture's prefix."""

    def __init__(self, metadata: Mapping[str, MetadataValue], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture

    def find(self, key: str) -> int | None:
        value = self._metadata.get(f"{self._prefix}.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or value < 0:
            raise BadFileError(f"{self._prefix}.{key} is {value!r}, not a whole number")
        return value or None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.find(key) or default
        if value is None:
            raise BadFileError(f"the GGUF metadata lacks {self._prefix}.{key}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._metadata.get(f"{self._prefix}.{key}", default)
        if not isinstance(value, int | float):
            raise BadFileError(f"{self._prefix}.{key} is {value!r}, not a number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        return str(self._metadata.get(f"{self._prefix}.{key}", default))


def _rope_scaling(keys: _Keys, header: GGUFHeader, max_positions: int) -> RopeScaling | None:
    if ROPE_FREQUENCIES in header.tensors:
        return _llama3_scaling(keys, header)
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", 1.0)
    original = keys.integer("rope.scaling.original_context_length", max_positions)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor, original_max_positions=original)
    if kind != "yarn":
        raise BadFileError(f"rope scaling {kind!r} is not supported; known: linear, llama3, yarn")
    if keys.number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise BadFileError("rope.scaling.attn_factor other than 1 is not supported")
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_positions=original,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _llama3_scaling(keys: _Keys, header: GGUFHeader) -> RopeScaling:
    """The file holds each frequency's divisor instead of the rule that made them. The largest is
    the rule's factor; the other numbers are Llama 3's, and are proved by computing the divisors."""
    info = header.tensors[ROPE_FREQUENCIES]
    stored = np.fromfile(info.path, np.float32, info.num_elements, offset=info.offset)
    scaling = RopeScaling(
        kind="llama3",
        factor=round(float(stored.max()), 3),  # as written before float32
        original_max_positions=keys.integer("rope.scaling.original_context_length", 8192),
    )
    base = keys.number("rope.freq_base", 10000.0)
    expected = [
        _llama3_divisor(2 * math.pi * base ** (i / stored.size), scaling)
        for i in range(stored.size)
    ]
    if not np.allclose(stored, expected, rtol=1e-3):
        raise BadFileError(f"{ROPE_FREQUENCIES} does not follow the Llama 3 rule")
    return scaling


def _llama3_divisor(wavelength: float, scaling: RopeScaling) -> float:
    turns = scaling.original_max_positions / wavelength
    if turns > scaling.high_freq_factor:
        return 1.0
    if turns < scaling.low_freq_factor:
        return scaling.factor
    smooth = (turns - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return 1.0 / ((1.0 - smooth) / scaling.factor + smooth)


def _vocab_size(header: GGUFHeader) -> int:
    table = header.tensors.get("token_embd.weight")
    if table is None:
        raise BadFileError(f"{header.path.name} lacks the tensor token_embd.weight")
    return table.shape[0]


def _token_id(metadata: Mapping[str, MetadataValue], kind: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{kind}_token_id")
    return value if isinstance(value, int) else None


def _end_of_sequence_ids(metadata: Mapping[str, MetadataValue]) -> tuple[int, ...]:
    declared = [_token_id(metadata, kind) for kind in ("eos", "eot", "eom")]
    tokens = metadata.get("tokenizer.ggml.tokens")
    by_name = (
        [tokens.index(token) for token in END_OF_TURN_TOKENS if token in tokens]
        if isinstance(tokens, list)
        else []
    )
    found = [token_id for token_id in declared if token_id is not None] + by_name
    return tuple(dict.fromkeys(found))
