"""Qwen3.5 and Qwen3-Next, and the Qwens beside a vision tower: Qwen2.5-VL, and Qwen3-VL without and
with experts.

Qwen3.5 and Qwen3-Next are hybrids of Gated DeltaNet and, every few layers, attention with a gate on
its output, with a dense MLP or a mixture. A part of each head is rotated, and norms' weights are
stored less one. Qwen3-Next's projections go from key head to key head.

A text's three rotary positions are all the same, so that interleaving them changes nothing.
Qwen2.5-VL's published checkpoints have the text model's keys in config.json itself, and its tensors
beside those of ``visual.*``. Qwen3-VL's published files stack experts with their inputs first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from inference.models.config import MixerKind, ModelConfig
from inference.models.families import hub_config, llama
from inference.models.families.decoder_tensors import mtp_name
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    listed_mixers,
    positive_integer,
    read_decoder,
    read_llama,
    repeated,
    rope_parameters,
)
from inference.models.families.mixture import experts_of, gguf_mixture, mlps_of, read_mixture_gguf
from inference.models.families.mixtures import read_qwen3_moe
from inference.models.families.tower import TOWER, VISION
from inference.models.families.tower_gguf import QWEN2_5_PROJECTOR, QWEN3_PROJECTOR
from inference.models.families.tower_hub import read_vision, read_windowed_vision
from inference.models.layer_configs import NEGATIVE_RATE, DeltaConfig, DeltaNames

DEFAULT_INTERVAL = 4
DEFAULT_ROTARY_FACTOR = 0.25

KINDS: Mapping[str, MixerKind] = {"linear_attention": "delta", "full_attention": "attention"}
GGUF_LAYER = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": f"linear_attn.{NEGATIVE_RATE}",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
LEFT_OUT = {"mtp.": "multi-token prediction"}
GROUPED = DeltaNames(qkvz=("in_proj_qkvz",), ba=("in_proj_ba",))
PLAIN_QKVZ = DeltaNames(ba=("in_proj_ba",))
"""The names that llama.cpp's converter writes today: it takes the larger of the two apart."""


def read_qwen3_5(config: Json, generation: Json) -> ModelConfig:
    text = text_config(config)
    check_activation(text, "silu")
    fields = hybrid_fields(text, DeltaNames())
    return read_decoder(text, generation, **fields, vision=read_vision(config, text))


def read_qwen3_5_moe(config: Json, generation: Json) -> ModelConfig:
    text = text_config(config)
    check_activation(text, "silu")
    fields = hybrid_fields(text, DeltaNames()) | sparse_fields(text)
    text["intermediate_size"] = fields["intermediate_size"]
    return read_decoder(text, generation, **fields, vision=read_vision(config, text))


def read_qwen3_next(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu")
    fields = hybrid_fields(config, GROUPED) | sparse_fields(config)
    return read_decoder(config, generation, **fields)


def hybrid_fields(config: Json, names: DeltaNames) -> dict[str, Any]:
    """Fields of ``ModelConfig``. ``config``: of the text model."""
    has_bias = bool(config.get("attention_bias", False))
    return {
        "mixers": _mixers(config),
        "delta": DeltaConfig(
            num_key_heads=positive_integer(config, "linear_num_key_heads"),
            num_value_heads=positive_integer(config, "linear_num_value_heads"),
            key_head_dim=positive_integer(config, "linear_key_head_dim"),
            value_head_dim=positive_integer(config, "linear_value_head_dim"),
            conv_kernel=positive_integer(config, "linear_conv_kernel_dim"),
            names=names,
        ),
        "norm": "rms_plus_one",
        "rotary_dim": _rotary_dim(config),
        "has_output_gate": True,
        "qk_norm": True,
        "qkv_bias": has_bias,
        "output_bias": has_bias,
    }


def sparse_fields(config: Json) -> dict[str, Any]:
    return {
        "experts": experts_of(
            config,
            normalizes=bool(config.get("norm_topk_prob", True)),
            shared_intermediate_size=positive_integer(config, "shared_expert_intermediate_size"),
        ),
        "mlps": mlps_of(config),
        "intermediate_size": int(config.get("intermediate_size") or 0)
        or positive_integer(config, "moe_intermediate_size"),
    }


def _mixers(config: Json) -> tuple[MixerKind, ...]:
    interval = int(config.get("full_attention_interval") or DEFAULT_INTERVAL)
    num_layers = positive_integer(config, "num_hidden_layers")
    return listed_mixers(config, KINDS) or repeated(num_layers, interval, others="delta")


def _rotary_dim(config: Json) -> int:
    factor = rope_parameters(config).get("partial_rotary_factor")
    if factor is None:
        factor = config.get("partial_rotary_factor", DEFAULT_ROTARY_FACTOR)
    return int(positive_integer(config, "head_dim") * float(factor))


def text_config(config: Json) -> dict[str, Any]:
    return hub_config.text_config(config, {}) | {"model_type": config["model_type"]}


def read_hybrid_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    """llama.cpp's converter adds one to norms' weights and writes negated rates of forgetting."""
    is_next, names = model_type == "qwen3_next", DeltaNames()
    if is_next:
        is_grouped = any(name.endswith(".ssm_in.weight") for name in keys.shapes)
        names = GROUPED if is_grouped else PLAIN_QKVZ
    num_layers = keys.layers_before_predictors()
    sparse: dict[str, Any] = {}
    if model_type != "qwen3_5":
        sparse = gguf_mixture(keys, normalizes=True, num_layers=num_layers)
    num_value_heads = keys.integer("ssm.time_step_rank")
    interval = keys.integer("full_attention_interval", DEFAULT_INTERVAL)
    return read_decoder_gguf(
        keys,
        model_type,
        num_layers=num_layers,
        mixers=repeated(num_layers, interval, others="delta"),
        delta=DeltaConfig(
            num_key_heads=keys.integer("ssm.group_count"),
            num_value_heads=num_value_heads,
            key_head_dim=keys.integer("ssm.state_size"),
            value_head_dim=keys.integer("ssm.inner_size") // num_value_heads,
            conv_kernel=keys.integer("ssm.conv_kernel"),
            are_value_heads_tiled=not is_next,
            names=replace(names, decay=NEGATIVE_RATE),
        ),
        rotary_dim=keys.integer("rope.dimension_count"),
        has_output_gate=True,
        qk_norm=True,
        **sparse,
    )


QWEN3_5 = Family(
    model_types=("qwen3_5", "qwen3_5_text"),
    gguf_architectures=("qwen35",),
    read_config=read_qwen3_5,
    read_gguf=read_hybrid_gguf,
    hub_name=hub_config.hub_name,
    left_out={TOWER: VISION, **LEFT_OUT},
    predictor_name=mtp_name,
    gguf_layer=GGUF_LAYER,
    gguf_projectors=(QWEN3_PROJECTOR,),
)
QWEN3_5_MOE = replace(
    QWEN3_5,
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    gguf_architectures=("qwen35moe",),
    read_config=read_qwen3_5_moe,
)
QWEN3_NEXT = Family(
    model_types=("qwen3_next",),
    gguf_architectures=("qwen3next",),
    read_config=read_qwen3_next,
    read_gguf=read_hybrid_gguf,
    left_out=LEFT_OUT,
    predictor_name=mtp_name,
    gguf_layer=GGUF_LAYER,
)


PUBLISHED_TOWER = "visual."
ROPE_KEYS = ("rope_parameters", "rope_scaling")


def read_qwen2_5_vl(config: Json, generation: Json) -> ModelConfig:
    text = _unscaled(text_config(config) | {"model_type": "qwen2"})
    return replace(
        llama.read_config(text, generation),
        architecture=str(config["model_type"]),
        vision=read_windowed_vision(config, text),
    )


def _unscaled(text: dict[str, Any]) -> dict[str, Any]:
    """For text alone, ``mrope`` is the same as the default scaling."""
    for key in ROPE_KEYS:
        rope = text.get(key)
        if isinstance(rope, dict) and "mrope" in (rope.get("rope_type"), rope.get("type")):
            text[key] = rope | {"rope_type": "default", "type": "default"}
    return text


def qwen2_5_vl_name(name: str) -> str:
    return f"model.{name}" if name.startswith(PUBLISHED_TOWER) else hub_config.hub_name(name)


def read_qwen3_vl(config: Json, generation: Json) -> ModelConfig:
    text = text_config(config)
    return read_llama(text, generation, qk_norm=True, vision=read_vision(config, text))


def read_qwen3_vl_moe(config: Json, generation: Json) -> ModelConfig:
    """The family's routing always normalises."""
    text = text_config(config) | {"norm_topk_prob": True}
    return replace(read_qwen3_moe(text, generation), vision=read_vision(config, text))


QWEN2_5_VL = Family(
    model_types=("qwen2_5_vl", "qwen2_5_vl_text"),
    gguf_architectures=("qwen2vl",),
    read_config=read_qwen2_5_vl,
    read_gguf=llama.read_gguf,
    hub_name=qwen2_5_vl_name,
    left_out={TOWER: VISION},
    gguf_projectors=(QWEN2_5_PROJECTOR,),
)
QWEN3_VL = Family(
    model_types=("qwen3_vl", "qwen3_vl_text"),
    gguf_architectures=("qwen3vl",),
    read_config=read_qwen3_vl,
    hub_name=hub_config.hub_name,
    left_out={TOWER: VISION},
    gguf_projectors=(QWEN3_PROJECTOR,),
)
QWEN3_VL_MOE = replace(
    QWEN3_VL,
    model_types=("qwen3_vl_moe", "qwen3_vl_moe_text"),
    gguf_architectures=("qwen3vlmoe",),
    read_config=read_qwen3_vl_moe,
    read_gguf=partial(read_mixture_gguf, normalizes=True),
    has_transposed_experts=True,
)
FAMILIES = (QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT, QWEN2_5_VL, QWEN3_VL, QWEN3_VL_MOE)
