"""Decoders whose layers have other norms than llama's, or have them elsewhere.

Command R and R7B have mixer and MLP side by side after one layer norm; logits are scaled and
neighbours rotated together. R7B has windows on most layers, and rotates only those.

GLM-4 rotates half of each head, neighbours together; GLM-4-0414 also norms what each part adds.

OLMo 2 and 3 and EXAONE 4 norm what each part adds instead of what it reads. OLMo's other norms are
of all heads together, EXAONE's of each. In OLMo 3 most layers see a window, and their positions are
not scaled. Where EXAONE has a window, the layers that see beyond it have no rotary embedding.

StarCoder2 has layer norms with biases, and no gates."""

from __future__ import annotations

from functools import partial
from typing import Any

from inference.models.config import MixerKind, ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import (
    GGUFKeys,
    read_decoder_gguf,
    windowed_layers,
)
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    kinds_of_layers,
    positive_integer,
    read_decoder,
    read_llama,
    repeated,
    rope_by_kind,
    rope_parameters,
    rotary_dim,
)
from inference.models.families.roles import LayerNames
from inference.protocol.load_errors import BadFileError

COHERE_NAMES = LayerNames(mlp_norm=None)
PERIOD = 4
"""The last of so many layers sees the whole context, where the config does not list them."""
COHERE_LAYERS: dict[str, Any] = {"norm": "layer", "is_parallel": True, "is_rope_interleaved": True}


def read_cohere(config: Json, generation: Json) -> ModelConfig:
    if config.get("use_qk_norm"):
        raise BadFileError("layer norms of each head, use_qk_norm, are not supported")
    return _read_cohere(config, generation)


def read_cohere2(config: Json, generation: Json) -> ModelConfig:
    period = int(config.get("sliding_window_pattern") or PERIOD)
    default = repeated(int(config["num_hidden_layers"]), period, last="unrotated")
    return _read_cohere(
        config,
        generation,
        mixers=_rotated_in_windows(kinds_of_layers(config, default)),
        sliding_window=config.get("sliding_window") or 4096,
    )


def _rotated_in_windows(kinds: tuple[MixerKind, ...]) -> tuple[MixerKind, ...]:
    return tuple("sliding" if kind == "sliding" else "unrotated" for kind in kinds)


def _read_cohere(config: Json, generation: Json, **declared: Any) -> ModelConfig:
    return read_llama(
        config,
        generation,
        **COHERE_LAYERS,
        **declared,
        rms_norm_eps=float(config.get("layer_norm_eps") or 1e-5),
        defaults={"tie_word_embeddings": True},
        logit_multiplier=float(config.get("logit_scale", 0.0625)),
    )


def read_cohere2_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    return read_cohere_gguf(
        keys,
        model_type,
        mixers=windowed_layers(keys, PERIOD, last="unrotated"),
        sliding_window=keys.integer("attention.sliding_window", 4096),
    )


def read_cohere_gguf(keys: GGUFKeys, model_type: str, **declared: Any) -> ModelConfig:
    if keys.has_tensor("blk.0.attn_q_norm.weight"):
        raise BadFileError("layer norms of each head are not supported")
    return read_decoder_gguf(
        keys,
        model_type,
        **COHERE_LAYERS,
        **declared,
        logit_multiplier=keys.number("logit_scale", 0.0625) or 1.0,
    )


COHERE = Family(
    model_types=("cohere",),
    gguf_architectures=("command-r",),
    read_config=read_cohere,
    read_gguf=read_cohere_gguf,
    layer_names=COHERE_NAMES,
)
COHERE2 = Family(
    model_types=("cohere2",),
    gguf_architectures=("cohere2",),
    read_config=read_cohere2,
    read_gguf=read_cohere2_gguf,
    layer_names=COHERE_NAMES,
)


GLM_NAMES = LayerNames(gate_up=("mlp.gate_up_proj",))
GLM4_NAMES = LayerNames(
    gate_up=("mlp.gate_up_proj",),
    mixed_norm="post_self_attn_layernorm",
    mlp_added_norm="post_mlp_layernorm",
)


def read_glm(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu", "swish")
    return read_decoder(
        config,
        generation,
        qkv_bias=bool(config.get("attention_bias", True)),
        rotary_dim=rotary_dim(config, default=0.5),
        is_rope_interleaved=True,
    )


GLM = Family(
    model_types=("glm",),
    read_config=read_glm,
    layer_names=GLM_NAMES,
)
GLM4 = Family(
    model_types=("glm4",),
    gguf_architectures=("glm4",),
    read_config=read_glm,
    read_gguf=partial(read_decoder_gguf, is_rotated_in_part=True, is_rope_interleaved=True),
    layer_names=GLM4_NAMES,
)


NORMED_AFTER = LayerNames(
    input_norm=None,
    mixed_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_added_norm="post_feedforward_layernorm",
)
OLMO3_THETA = 500_000.0
EPS_DEFAULTS = {"rms_norm_eps": 1e-5}
read_olmo2 = partial(read_llama, defaults=EPS_DEFAULTS, qk_norm=True, is_qk_norm_wide=True)


def read_olmo3(config: Json, generation: Json) -> ModelConfig:
    config, local_theta = rope_by_kind({"rope_theta": OLMO3_THETA, **config})
    num_layers = positive_integer(config, "num_hidden_layers")
    theta = local_theta or rope_parameters(config)["rope_theta"] or OLMO3_THETA
    return read_olmo2(
        config,
        generation,
        mixers=kinds_of_layers(config, repeated(num_layers, PERIOD)),
        sliding_window=config.get("sliding_window") or 4096,
        sliding_rope_theta=float(theta),
    )


def read_olmo_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    """llama.cpp calls both OLMo 2: the third has a window."""
    window = keys.find("attention.sliding_window")
    theta = keys.number("rope.freq_base", OLMO3_THETA)
    if window is None:
        return read_decoder_gguf(keys, model_type, is_qk_norm_wide=True)
    return read_decoder_gguf(
        keys,
        "olmo3",
        is_qk_norm_wide=True,
        mixers=windowed_layers(keys, PERIOD),
        sliding_window=window,
        sliding_rope_theta=keys.number("rope.freq_base_swa", theta),
    )


def read_exaone4(config: Json, generation: Json) -> ModelConfig:
    num_layers = positive_integer(config, "num_hidden_layers")
    period = config.get("sliding_window_pattern")
    default = repeated(num_layers, period if isinstance(period, int) and period else PERIOD)
    return read_llama(
        config,
        generation,
        defaults=EPS_DEFAULTS,
        qk_norm=True,
        **_exaone4_layers(config.get("sliding_window"), kinds_of_layers(config, default)),
    )


def read_exaone4_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    window, kinds = keys.find("attention.sliding_window"), windowed_layers(keys, PERIOD)
    return read_decoder_gguf(keys, model_type, **_exaone4_layers(window, kinds))


def _exaone4_layers(window: int | None, kinds: tuple[MixerKind, ...]) -> dict[str, Any]:
    if window is None:
        return {}
    return {"sliding_window": window, "mixers": _rotated_in_windows(kinds)}


OLMO2 = Family(
    model_types=("olmo2",),
    gguf_architectures=("olmo2",),
    read_config=read_olmo2,
    read_gguf=read_olmo_gguf,
    layer_names=NORMED_AFTER,
)
OLMO3 = Family(
    model_types=("olmo3",),
    read_config=read_olmo3,
    layer_names=NORMED_AFTER,
)
EXAONE4 = Family(
    model_types=("exaone4",),
    gguf_architectures=("exaone4",),
    read_config=read_exaone4,
    read_gguf=read_exaone4_gguf,
    layer_names=NORMED_AFTER,
)


STARCODER2_NAMES = LayerNames(gate_up=("mlp.c_fc",), down="mlp.c_proj")
STARCODER2_LAYERS: dict[str, Any] = {
    "norm": "layer",
    "has_norm_bias": True,
    "is_gated": False,
    "activation": "gelu_tanh",
}


def read_starcoder2(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "gelu_pytorch_tanh")
    check_whole_rotary(config)
    has_bias = bool(config.get("use_bias", True))
    return read_decoder(
        config,
        generation,
        **STARCODER2_LAYERS,
        rms_norm_eps=float(config.get("norm_epsilon") or 1e-5),
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        sliding_window=config.get("sliding_window") or None,
    )


STARCODER2 = Family(
    model_types=("starcoder2",),
    gguf_architectures=("starcoder2",),
    read_config=read_starcoder2,
    read_gguf=partial(read_decoder_gguf, is_windowed=True, **STARCODER2_LAYERS),
    layer_names=STARCODER2_NAMES,
)
FAMILIES = (COHERE, COHERE2, GLM, GLM4, OLMO2, OLMO3, EXAONE4, STARCODER2)
