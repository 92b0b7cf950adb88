"""GGUF architectures that no family here reads, and which transformers reads into its own modules,
dequantised. Its reader passes over some of the metadata: what changes the answer is added here.
"""

from __future__ import annotations

from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.gguf_keys import GGUFKeys, rope_scaling
from inference.models.families.gguf_numbers import check_computed
from inference.protocol.load_errors import BadFileError

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
"""Keys that transformers' reader reads, that are added here, or whose number a module has too."""


def check_module_keys(keys: GGUFKeys, config: ModelConfig) -> None:
    """Raises ``BadFileError`` for a key that changes numbers and that nobody reads."""
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
    """Bases, and how much of each head is rotated."""
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
