"""Reads what families with multi-head latent attention share in config.json and in GGUF's keys."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from inference.models.families.gguf_keys import GGUFKeys, rope_scaling
from inference.models.families.hub_config import Json, positive_integer, rope_parameters
from inference.models.layers.configs import LatentConfig
from inference.protocol.load_errors import BadFileError


def latent_fields(shape: LatentConfig, num_layers: int) -> dict[str, Any]:
    """Fields of ``ModelConfig``: one head of keys is kept, and it is a latent with its rotary
    key."""
    return {
        "latent": shape,
        "mixers": ("latent",) * num_layers,
        "num_kv_heads": 1,
        "head_dim": shape.cached_features,
        "rotary_dim": shape.rotary_dim,
        "attention_scale": shape.query_dim**-0.5,
    }


def read_latent(config: Json) -> dict[str, Any]:
    """The same by the keys of DeepSeek's kin. Raises ``BadFileError``."""
    is_compressed = config.get("q_lora_rank") is not None
    shape = LatentConfig(
        kv_rank=positive_integer(config, "kv_lora_rank"),
        rotary_dim=positive_integer(config, "qk_rope_head_dim"),
        plain_dim=positive_integer(config, "qk_nope_head_dim"),
        value_dim=positive_integer(config, "v_head_dim"),
        query_rank=positive_integer(config, "q_lora_rank") if is_compressed else None,
    )
    has_bias = bool(config.get("attention_bias", False))
    fields = latent_fields(shape, positive_integer(config, "num_hidden_layers"))
    fields["attention_scale"] *= _magnitude(rope_parameters(config)) ** 2
    return fields | {
        "qkv_bias": has_bias,
        "output_bias": has_bias,
        "is_rope_interleaved": config.get("rope_interleave", True) is not False,
    }


LATENT_NAMES = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
"""Hugging Face's names by GGUF's, within a layer."""


def gguf_latent(keys: GGUFKeys) -> LatentConfig:
    """Older files hold ``attn_kv_b`` whole, and the widths of a head as those of its key and value;
    newer ones hold it in two, and those are of a latent. Raises ``BadFileError``."""
    is_split = keys.has_tensor("blk.0.attn_k_b.weight")
    suffix = "_mla" if keys.find("attention.key_length_mla") else ""
    rotary_dim = keys.integer("rope.dimension_count")
    query_dim = keys.integer(f"attention.key_length{suffix}")
    if query_dim <= rotary_dim:
        raise BadFileError(f"{rotary_dim} features of each head of {query_dim} are rotated")
    is_compressed = keys.has_tensor("blk.0.attn_q_a.weight")
    return LatentConfig(
        kv_rank=keys.integer("attention.kv_lora_rank"),
        rotary_dim=rotary_dim,
        plain_dim=query_dim - rotary_dim,
        value_dim=keys.integer(f"attention.value_length{suffix}"),
        query_rank=keys.integer("attention.q_lora_rank") if is_compressed else None,
        is_up_split=is_split,
    )


def gguf_latent_fields(keys: GGUFKeys, shape: LatentConfig, num_layers: int) -> dict[str, Any]:
    """Fields of ``ModelConfig``. Of YaRN's rule files hold a tenth of what multiplies queries and
    keys as a whole; cosines and sines are multiplied by nothing. Raises ``BadFileError``."""
    fields = latent_fields(shape, num_layers)
    scaling = rope_scaling(keys, keys.integer("context_length"))
    if scaling is not None and scaling.kind == "yarn":
        times = 10 * keys.number("rope.scaling.yarn_log_multiplier", 0.0)
        fields["attention_scale"] *= magnitude(scaling.factor, times) ** 2
        scaling = replace(scaling, attention_factor=1.0)
    return fields | {
        "rope_scaling": scaling,
        "is_rope_interleaved": True,
        "qkv_bias": keys.has_tensor("blk.0.attn_kv_a_mqa.bias"),
    }


def _magnitude(rope: Json) -> float:
    """YaRN's factor of queries and keys, those features too that are not rotated. Cosines
    and sines are left the rest of its rule: see ``hub_config.rope_scaling``."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    below = rope.get("mscale_all_dim")
    if kind == "default" or not below:
        return 1.0
    return magnitude(float(rope.get("factor") or 1.0), float(below))


def magnitude(factor: float, times: float) -> float:
    return 0.1 * times * math.log(max(factor, 1.0)) + 1.0
