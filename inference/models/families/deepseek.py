"""DeepSeek V2 and V3, and their kin: Kimi K2 and GLM-4.7-Flash. Latent attention, and a mixture of
experts behind the first layers, beside one that all rows go through.

V2 scores experts by a softmax, and where they are in groups a group is worth its best expert. V3
scores them by sigmoids and a bias that only chooses, and a group is worth its two best.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from inference.models.config import MlpKind, ModelConfig
from inference.models.families.family import Family, renaming
from inference.models.families.gguf_keys import (
    GGUFKeys,
    read_decoder_gguf,
    rope_scaling,
)
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    read_decoder,
    rope_parameters,
)
from inference.models.families.mixture import SHARED_EXPERTS, gguf_mixture, routed_fields
from inference.models.layer_configs import ExpertsConfig, LatentConfig
from inference.protocol.load_errors import BadFileError


def latent_fields(shape: LatentConfig, num_layers: int) -> dict[str, Any]:
    """Fields of ``ModelConfig``: the one head of keys is a latent with its rotary key."""
    return {
        "latent": shape,
        "mixers": ("latent",) * num_layers,
        "num_kv_heads": 1,
        "head_dim": shape.cached_features,
        "rotary_dim": shape.rotary_dim,
        "attention_scale": shape.query_dim**-0.5,
    }


def read_latent(config: Json) -> dict[str, Any]:
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


def gguf_latent(keys: GGUFKeys) -> LatentConfig:
    """Older files hold ``attn_kv_b`` whole, and the widths of a head as those of its key and value;
    newer ones hold it in two, and those are of a latent."""
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
    keys as a whole; cosines and sines are multiplied by nothing."""
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
    """YaRN's factor of whole queries and keys, not that of cosines and sines."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    below = rope.get("mscale_all_dim")
    if kind == "default" or not below:
        return 1.0
    return magnitude(float(rope.get("factor") or 1.0), float(below))


def magnitude(factor: float, times: float) -> float:
    return 0.1 * times * math.log(max(factor, 1.0)) + 1.0


V2_METHODS = ("greedy", "group_limited_greedy")
V3_METHOD = "noaux_tc"
MLP_TYPES: dict[str, MlpKind] = {"dense": "dense", "sparse": "sparse"}


def read_v2(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu", "swish")
    method = config.get("topk_method") or V2_METHODS[0]
    if method not in V2_METHODS:
        raise BadFileError(
            f"topk_method {method!r} is not supported; known: {', '.join(V2_METHODS)}"
        )
    _check_scoring(config, "softmax")
    if config.get("norm_topk_prob"):
        raise BadFileError("norm_topk_prob is not supported beside softmax in this architecture")
    _check_every_layer(config)
    defaults = {"n_shared_experts": 2} | dict(config)
    if method == V2_METHODS[0]:
        defaults |= {"n_group": 1, "topk_group": 1}
    fields = routed_fields(defaults, scoring="softmax", has_choice_bias=False, group_experts=1)
    return read_decoder(_whole(config), generation, **read_latent(config), **fields)


def read_v3(config: Json, generation: Json) -> ModelConfig:
    method = config.get("topk_method") or V3_METHOD
    if method != V3_METHOD:
        raise BadFileError(f"topk_method {method!r} is not supported; known: {V3_METHOD!r}")
    _check_scoring(config, "sigmoid")
    defaults = {"routed_scaling_factor": 2.5, "first_k_dense_replace": 3}
    return read_glm(defaults | {"n_group": 8, "topk_group": 4} | dict(config), generation)


def read_glm(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu", "swish")
    defaults = {"routed_scaling_factor": 1.8, "first_k_dense_replace": 1}
    config = defaults | {"n_shared_experts": 1, "norm_topk_prob": True} | dict(config)
    _check_every_layer(config)
    fields = routed_fields(config)
    if listed := config.get("mlp_layer_types"):
        if unknown := sorted(set(listed) - MLP_TYPES.keys()):
            raise BadFileError(f"an MLP of the type {unknown[0]!r} is not supported")
        fields["mlps"] = tuple(MLP_TYPES[name] for name in listed)
    return read_decoder(_whole(config), generation, **read_latent(config), **fields)


def _whole(config: Json) -> Json:
    """transformers writes the width of the rotated part as ``head_dim``, whose whole is rotated."""
    return {**config, "head_dim": positive_integer(config, "qk_rope_head_dim")}


def _check_every_layer(config: Json) -> None:
    if (every := config.get("moe_layer_freq") or 1) != 1:
        raise BadFileError(f"moe_layer_freq {every!r} is not supported; known: 1")


def _check_scoring(config: Json, known: str) -> None:
    if (scoring := config.get("scoring_func") or known) != known:
        raise BadFileError(
            f"scoring_func {scoring!r} is not supported; this architecture has {known!r}"
        )


def read_gguf(keys: GGUFKeys, _model_type: str) -> ModelConfig:
    """llama.cpp writes all of these models alike: the scoring of experts distinguishes V2's files.
    Its rule for groups is V3's; V2's own is not in the file."""
    num_layers = keys.layers_before_predictors()
    mixture = gguf_mixture(keys, normalizes=False, num_layers=num_layers)
    experts: ExpertsConfig = mixture["experts"]
    is_v2 = experts.scoring == "softmax"
    if is_v2:
        mixture["experts"] = replace(experts, group_experts=1)
    shape = gguf_latent(keys)
    return read_decoder_gguf(
        keys,
        "deepseek_v2" if is_v2 else "deepseek_v3",
        num_layers=num_layers,
        **mixture,
        **gguf_latent_fields(keys, shape, num_layers),
    )


GGUF = "deepseek2"
DEEPSEEK_V3 = Family(
    model_types=("deepseek_v3", "kimi_k2"),
    gguf_architectures=(GGUF,),
    read_config=read_v3,
    read_gguf=read_gguf,
    hub_name=renaming(SHARED_EXPERTS),
    gguf_layer=LATENT_NAMES,
    gguf_folded=frozenset({"attn_k_b", "attn_v_b"}),
)
DEEPSEEK_V2 = replace(
    DEEPSEEK_V3,
    model_types=("deepseek_v2",),
    gguf_architectures=(),
    read_config=read_v2,
)
GLM4_MOE_LITE = replace(
    DEEPSEEK_V2,
    model_types=("glm4_moe_lite",),
    read_config=read_glm,
)
FAMILIES = (DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE)
