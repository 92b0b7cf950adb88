"""Decoders of llama's layers whose MLPs are mixtures of experts: mixtral, olmoe, qwen2_moe and
qwen3_moe, dots.llm1, MiniMax-M2, ERNIE 4.5 with experts, GLM-4.5 and later, and gpt-oss.

GLM-4.5 chooses experts by their sigmoids and a bias that only chooses, of the best groups.

gpt-oss attends with sinks, within a window in every other layer, and its biased experts have a
clamped activation. Its published files hold the experts in MXFP4, and gates and the rest row by
row: ``loading/weights/named_files.py`` cuts them up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from inference.models.config import MlpKind, ModelConfig
from inference.models.families.decoder_tensors import nextn_name
from inference.models.families.family import Family, renaming
from inference.models.families.gguf_keys import (
    GGUFKeys,
    read_decoder_gguf,
    windowed_layers,
)
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_no_window,
    kinds_of_layers,
    positive_integer,
    read_decoder,
    read_llama,
    repeated,
    rotary_dim,
)
from inference.models.families.llama import ERNIE_DEFAULTS, interleaved_heads
from inference.models.families.mixture import (
    SHARED_EXPERTS,
    experts_of,
    gguf_mixture,
    mlps_of,
    read_mixture_gguf,
    routed_fields,
)
from inference.models.layer_configs import ExpertsConfig
from inference.protocol.load_errors import BadFileError

GPT_OSS_ROUTING: dict[str, Any] = {
    "scoring": "softmax_of_chosen",
    "has_bias": True,
    "swish_gain": 1.702,
    "limit": 7.0,
}
"""GGUF has no key for it."""


def read_gpt_oss(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu")
    num_layers = positive_integer(config, "num_hidden_layers")
    inner = positive_integer(config, "intermediate_size")
    has_bias = bool(config.get("attention_bias", True))
    kinds = kinds_of_layers(config, repeated(num_layers, 2))
    window = config.get("sliding_window")
    if window is None and "sliding" in kinds:
        raise BadFileError("config.json has sliding layers and no sliding_window")
    return read_decoder(
        config,
        generation,
        qkv_bias=has_bias,
        output_bias=has_bias,
        has_sinks=True,
        mixers=kinds,
        sliding_window=window,
        mlps=("sparse",) * num_layers,
        experts=experts_of(
            config,
            intermediate_size=inner,
            **GPT_OSS_ROUTING
            | {
                "swish_gain": float(config.get("swiglu_alpha", GPT_OSS_ROUTING["swish_gain"])),
                "limit": float(config.get("swiglu_limit", GPT_OSS_ROUTING["limit"])),
            },
        ),
    )


def read_gpt_oss_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    num_layers = keys.integer("block_count")
    inner = keys.integer("expert_feed_forward_length")
    experts = ExpertsConfig(
        num_experts=keys.integer("expert_count"),
        experts_per_token=keys.integer("expert_used_count"),
        intermediate_size=inner,
        normalizes=False,
        **GPT_OSS_ROUTING,
    )
    config = read_decoder_gguf(
        keys,
        model_type,
        intermediate_size=inner,
        has_sinks=True,
        mixers=windowed_layers(keys, 2),
        sliding_window=keys.integer("attention.sliding_window"),
        mlps=("sparse",) * num_layers,
        experts=experts,
    )
    if config.rope_scaling is None:
        return config
    return replace(config, rope_scaling=replace(config.rope_scaling, truncates=False))


GPT_OSS = Family(
    model_types=("gpt_oss",),
    gguf_architectures=("gpt-oss",),
    read_config=read_gpt_oss,
    read_gguf=read_gpt_oss_gguf,
    hub_name=renaming({".mlp.router.": ".mlp.gate."}),
)


BLOCK_NAMES = {
    ".block_sparse_moe.e_score_correction_bias": ".mlp.gate.e_score_correction_bias",
    ".block_sparse_moe.": ".mlp.",
    ".w1.": ".gate_proj.",
    ".w2.": ".down_proj.",
    ".w3.": ".up_proj.",
}
"""Mixtral's; and MiniMax's, whose files have the bias that only chooses beside the router."""
ERNIE_NAMES = {
    "mlp.gate.moe_statics.": "mlp.gate.",
    "mlp.moe_statics.": "mlp.gate.",
    **SHARED_EXPERTS,
}
"""Older and newer names of the bias that only chooses."""


def read_mixtral(config: Json, generation: Json) -> ModelConfig:
    window = config.get("sliding_window")
    inner = positive_integer(config, "intermediate_size")
    return read_llama(
        config,
        generation,
        sliding_window=None if window is None else int(window),
        experts=experts_of(config, intermediate_size=inner, normalizes=True),
        mlps=("sparse",) * positive_integer(config, "num_hidden_layers"),
    )


def read_olmoe(config: Json, generation: Json) -> ModelConfig:
    if config.get("clip_qkv") is not None:
        raise BadFileError("clip_qkv is not supported")
    inner = positive_integer(config, "intermediate_size")
    return read_llama(
        config,
        generation,
        qk_norm=True,
        is_qk_norm_wide=True,
        experts=experts_of(config, intermediate_size=inner),
        mlps=("sparse",) * positive_integer(config, "num_hidden_layers"),
    )


def read_qwen3_moe(config: Json, generation: Json) -> ModelConfig:
    check_no_window(config)
    return read_llama(
        config, generation, qk_norm=True, experts=experts_of(config), mlps=mlps_of(config)
    )


def read_qwen2_moe(config: Json, generation: Json) -> ModelConfig:
    check_no_window(config)
    shared = positive_integer(config, "shared_expert_intermediate_size")
    return read_llama(
        config,
        generation,
        qkv_bias=bool(config.get("qkv_bias", True)),
        output_bias=False,
        experts=experts_of(config, shared_intermediate_size=shared),
        mlps=mlps_of(config),
    )


def read_dots1(config: Json, generation: Json) -> ModelConfig:
    if set(kinds_of_layers(config, default=())) - {"attention"}:
        raise BadFileError("layers with a sliding window are not supported in this architecture")
    return read_llama(config, generation, qk_norm=True, **routed_fields(config))


def read_minimax_m2(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu", "swish")
    has_norm, kind = config.get("use_qk_norm", True), config.get("qk_norm_type", "per_layer")
    if not has_norm or kind != "per_layer":
        raise BadFileError("queries and keys without a norm of all heads are not supported")
    if config.get("shared_intermediate_size"):
        raise BadFileError("a shared expert is not supported in this architecture")
    return read_decoder(
        config,
        generation,
        qk_norm=True,
        is_qk_norm_wide=True,
        rotary_dim=int(config.get("rotary_dim") or rotary_dim(config)),
        experts=experts_of(
            config,
            intermediate_size=positive_integer(config, "intermediate_size"),
            scoring="sigmoid",
            normalizes=True,
            has_choice_bias=True,
        ),
        mlps=("sparse",) * positive_integer(config, "num_hidden_layers"),
    )


def read_ernie_moe(config: Json, generation: Json) -> ModelConfig:
    if config.get("use_bias"):
        raise BadFileError("biases of every projection are not supported beside experts")
    inner = positive_integer(config, "moe_intermediate_size")
    num_shared = int(config.get("moe_num_shared_experts", 2) or 0)
    return read_llama(
        config,
        generation,
        defaults=ERNIE_DEFAULTS,
        is_rope_interleaved=True,
        mlps=_ernie_mlps(config),
        experts=experts_of(
            {"num_experts_per_tok": config.get("moe_k"), **config},
            num_experts=positive_integer(config, "moe_num_experts"),
            intermediate_size=inner,
            normalizes=True,
            shared_intermediate_size=inner * num_shared or None,
            gates_shared=False,
            has_choice_bias=True,
        ),
    )


def _ernie_mlps(config: Json) -> tuple[MlpKind, ...]:
    num_layers = positive_integer(config, "num_hidden_layers")
    first, last = (int(config.get(f"moe_layer_{end}_index", -1)) for end in ("start", "end"))
    last = num_layers - 1 if last == -1 else last
    interval = int(config.get("moe_layer_interval") or 1)
    return tuple(
        "sparse" if (index + 1) % interval == 0 and first <= index <= last else "dense"
        for index in range(num_layers)
    )


def read_glm4_moe(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu", "swish")
    defaults = {"n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True}
    return read_decoder(
        config,
        generation,
        qkv_bias=bool(config.get("attention_bias", False)),
        qk_norm=bool(config.get("use_qk_norm", False)),
        rotary_dim=rotary_dim(config, default=0.5),
        **routed_fields(defaults | dict(config)),
    )


def read_glm4_moe_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    num_layers = keys.layers_before_predictors()
    return read_decoder_gguf(
        keys,
        model_type,
        num_layers=num_layers,
        is_rotated_in_part=True,
        **gguf_mixture(keys, normalizes=True, num_layers=num_layers),
    )


MIXTRAL = Family(
    model_types=("mixtral",),
    read_config=read_mixtral,
    hub_name=renaming(BLOCK_NAMES),
    interleaved_heads=interleaved_heads,
)
OLMOE = Family(
    model_types=("olmoe",),
    gguf_architectures=("olmoe",),
    read_config=read_olmoe,
    read_gguf=partial(read_mixture_gguf, normalizes=False, is_qk_norm_wide=True),
)
QWEN3_MOE = Family(
    model_types=("qwen3_moe",),
    gguf_architectures=("qwen3moe",),
    read_config=read_qwen3_moe,
    read_gguf=partial(read_mixture_gguf, normalizes=True),
)
QWEN2_MOE = Family(
    model_types=("qwen2_moe",),
    gguf_architectures=("qwen2moe",),
    read_config=read_qwen2_moe,
    read_gguf=read_mixture_gguf,
)
DOTS1 = Family(
    model_types=("dots1",),
    gguf_architectures=("dots1",),
    read_config=read_dots1,
    read_gguf=read_mixture_gguf,
    hub_name=renaming(SHARED_EXPERTS),
)
MINIMAX_M2 = Family(
    model_types=("minimax_m2",),
    gguf_architectures=("minimax-m2",),
    read_config=read_minimax_m2,
    read_gguf=partial(
        read_mixture_gguf,
        normalizes=True,
        is_qk_norm_wide=True,
        is_rotated_in_part=True,
    ),
    hub_name=renaming(BLOCK_NAMES | {".mlp.e_score": ".mlp.gate.e_score"}),
)
ERNIE4_5_MOE = Family(
    model_types=("ernie4_5_moe",),
    gguf_architectures=("ernie4_5-moe",),
    read_config=read_ernie_moe,
    read_gguf=partial(read_mixture_gguf, normalizes=True, is_rope_interleaved=True),
    hub_name=renaming(ERNIE_NAMES),
    left_out={"model.mtp_": "multi-token prediction"},
)
GLM4_MOE = Family(
    model_types=("glm4_moe",),
    gguf_architectures=("glm4moe",),
    read_config=read_glm4_moe,
    read_gguf=read_glm4_moe_gguf,
    hub_name=renaming(SHARED_EXPERTS),
    predictor_name=nextn_name,
)
FAMILIES = (
    MIXTRAL,
    OLMOE,
    QWEN3_MOE,
    QWEN2_MOE,
    DOTS1,
    MINIMAX_M2,
    ERNIE4_5_MOE,
    GLM4_MOE,
    GPT_OSS,
)
