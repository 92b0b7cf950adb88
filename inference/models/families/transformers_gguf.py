"""GGUF architectures that no family here reads, and which transformers reads into its own modules,
dequantised. Its reader passes over some of the metadata: what changes the answer is added here.
"""

from __future__ import annotations

from typing import Any

from inference.models.families.gguf_keys import GGUFKeys
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


def added_by_metadata(keys: GGUFKeys) -> dict[str, Any]:
    """Raises ``BadFileError``."""
    eps = keys.number("attention.layer_norm_epsilon", 1e-5)
    match keys.architecture:
        case "falcon":
            return _rotary(keys) | _falcon_heads(keys) | {"layer_norm_epsilon": eps}
        case "nemotron":
            return _rotary(keys) | {"norm_eps": eps}
        case "stablelm":
            return _rotary(keys)
        case "gpt2":
            return {"n_positions": keys.integer("context_length")}
        case "bloom":
            return {"seq_length": keys.integer("context_length")}
    return {}


def _rotary(keys: GGUFKeys) -> dict[str, Any]:
    """Bases, and how much of each head is rotated."""
    if (kind := keys.metadata.get(f"{keys.architecture}.rope.scaling.type", "none")) != "none":
        raise BadFileError(f"rope scaling {kind!r} is not read from a GGUF of {keys.architecture}")
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
