"""LFM2 and LFM2-MoE: most layers are a short convolution, the others attention with norms of heads;
of the mixture, the first layers are dense."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

from inference.models.config import MixerKind, ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    listed_mixers,
    positive_integer,
    read_decoder,
    rope_parameters,
)
from inference.models.families.mixture import experts_of, gguf_mixture, sparse_behind
from inference.models.families.roles import LayerNames
from inference.models.layer_configs import ShortConvConfig

KINDS: dict[str, MixerKind] = {"conv": "conv", "full_attention": "attention"}
DEFAULT_THETA = 1_000_000.0
DEFAULT_KERNEL = 3
NAMES = LayerNames(
    input_norm="operator_norm",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    output="self_attn.out_proj",
    mlp_norm="ffn_norm",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
)
GGUF_LAYER = {
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}


def read_config(config: Json, generation: Json) -> ModelConfig:
    return _read(config, generation, intermediate_size=_intermediate_size(config))


def read_mixture(config: Json, generation: Json) -> ModelConfig:
    experts = experts_of(
        config,
        scoring="sigmoid",
        normalizes=bool(config.get("norm_topk_prob", True)),
        has_choice_bias=bool(config.get("use_expert_bias", True)),
        weight_scale=float(config.get("routed_scaling_factor", 1.0)),
    )
    mlps = sparse_behind(int(config.get("num_dense_layers", 2)), config)
    return _read(config, generation, experts=experts, mlps=mlps)


def _read(config: Json, generation: Json, **declared: Any) -> ModelConfig:
    return read_decoder(
        config,
        generation,
        mixers=_mixers(config),
        short_conv=ShortConvConfig(
            channels=positive_integer(config, "hidden_size"),
            kernel=positive_integer({"conv_L_cache": DEFAULT_KERNEL, **config}, "conv_L_cache"),
            has_bias=bool(config.get("conv_bias", False)),
        ),
        rms_norm_eps=float(config.get("norm_eps", 1e-5)),
        rope_theta=float(rope_parameters(config).get("rope_theta") or DEFAULT_THETA),
        tie_embeddings=bool(config.get("tie_embedding", config.get("tie_word_embeddings", True))),
        qk_norm=True,
        **declared,
    )


def _mixers(config: Json) -> tuple[MixerKind, ...]:
    num_layers = positive_integer(config, "num_hidden_layers")
    attending = config.get("full_attn_idxs")
    whole = range(num_layers) if attending is None else attending
    default = tuple("attention" if index in whole else "conv" for index in range(num_layers))
    return listed_mixers(config, KINDS) or cast("tuple[MixerKind, ...]", default)


def _intermediate_size(config: Json) -> int:
    """``block_auto_adjust_ff_dim``: the declared size is that of an MLP without gates."""
    key = "block_ff_dim" if config.get("block_ff_dim") else "intermediate_size"
    size = positive_integer(config, key)
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    size, multiplier = 2 * size // 3, config.get("block_ffn_dim_multiplier", 1.0)
    if multiplier is None:
        return size
    multiple = int(config.get("block_multiple_of", 256))
    return -(-int(multiplier * size) // multiple) * multiple


def read_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    is_mixture = bool(keys.find("expert_count"))
    mixers: tuple[MixerKind, ...] = tuple(
        "conv" if keys.has_tensor(f"blk.{index}.shortconv.conv.weight") else "attention"
        for index in range(keys.integer("block_count"))
    )
    return read_decoder_gguf(
        keys,
        model_type,
        mixers=mixers,
        short_conv=ShortConvConfig(
            channels=keys.integer("embedding_length"),
            kernel=keys.integer("shortconv.l_cache", DEFAULT_KERNEL),
            has_bias=any(name.endswith(".shortconv.conv.bias") for name in keys.shapes),
        ),
        num_kv_heads=keys.heads_of_keys(),
        qk_norm=True,
        **gguf_mixture(keys, normalizes=True) if is_mixture else {},
    )


EXPERT_PARTS = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
_OF_EXPERTS = re.compile(r"(.*)\.feed_forward\.(gate|experts|expert_bias)\b(.*)")


def hub_name(name: str) -> str:
    match = _OF_EXPERTS.fullmatch(name)
    if match is None:
        return name.replace("model.embedding_norm.", "model.norm.")
    layer, kind, rest = match.groups()
    if kind == "expert_bias":
        return f"{layer}.mlp.gate.e_score_correction_bias"
    for theirs, ours in EXPERT_PARTS.items():
        rest = rest.replace(theirs, ours)
    return f"{layer}.mlp.{kind}{rest}"


LFM2 = Family(
    model_types=("lfm2",),
    gguf_architectures=("lfm2",),
    read_config=read_config,
    read_gguf=read_gguf,
    layer_names=NAMES,
    hub_name=hub_name,
    gguf_layer=GGUF_LAYER,
    gguf_model={"token_embd_norm": "model.norm"},
)
LFM2_MOE = replace(
    LFM2,
    model_types=("lfm2_moe",),
    gguf_architectures=("lfm2moe",),
    read_config=read_mixture,
)
FAMILIES = (LFM2, LFM2_MOE)
