"""Decoders with layers of Mamba-2: Granite 4 and Bamba, Nemotron-H and Nemotron 3; and Granite 3.

Granite 3 is llama's layers with a multiplier at every joint. Granite 4 and Bamba have layers of
Mamba-2 or attention, with an MLP; Granite's may be a mixture with that MLP beside its experts, and
some Granite 4 attend in every layer. GGUF calls both ``granitehybrid``, and holds an MLP's gates
apart as Bamba's files do: such a file is read as a Bamba with Granite's multipliers.

A layer of Nemotron is Mamba-2, attention without rotation, an MLP or a mixture of experts, and
nothing else. Neither MLPs nor experts have gates."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from inference.models.config import MixerKind, MlpKind, ModelConfig
from inference.models.families.family import Family, renaming
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    read_decoder,
    read_llama,
)
from inference.models.families.llama import interleaved_heads
from inference.models.families.mixture import experts_of, gguf_mixture, groups_of
from inference.models.families.roles import LayerNames
from inference.models.layer_configs import NEGATIVE_RATE, ExpertsConfig, MambaConfig
from inference.protocol.load_errors import BadFileError

MAMBA_DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
MAMBA_LAYER = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_dt.bias": "mamba.dt_bias",
    "ssm_a": f"mamba.{NEGATIVE_RATE}",
    "ssm_d": "mamba.D",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}


def _read_mamba(config: Json) -> MambaConfig:
    sizes = MAMBA_DEFAULTS | {
        key: config[key] for key in MAMBA_DEFAULTS if config.get(key) is not None
    }
    size_of = partial(positive_integer, sizes)
    num_heads, head_dim = size_of("mamba_n_heads"), config.get("mamba_d_head") or "auto"
    if head_dim == "auto":
        features = size_of("mamba_expand") * positive_integer(config, "hidden_size")
        head_dim = features // num_heads
    return MambaConfig(
        num_heads=num_heads,
        head_dim=positive_integer({"mamba_d_head": head_dim}, "mamba_d_head"),
        num_groups=size_of("mamba_n_groups"),
        state_size=size_of("mamba_d_state"),
        conv_kernel=size_of("mamba_d_conv"),
        has_conv_bias=bool(config.get("mamba_conv_bias", True)),
        has_bias=bool(config.get("mamba_proj_bias", False)),
        step_limit=_step_limit(config.get("time_step_limit")),
    )


def _step_limit(declared: Any) -> tuple[float, float]:
    """JSON has no infinity: files spell it in several ways."""
    if not declared:
        return 0.0, math.inf
    low, high = (end["__float__"] if isinstance(end, dict) else end for end in declared)
    return float(low), float(high)


def _read_mamba_gguf(keys: GGUFKeys) -> MambaConfig:
    """llama.cpp's converter writes the negated rate of forgetting, not its logarithm."""
    num_heads = keys.integer("ssm.time_step_rank")
    return MambaConfig(
        num_heads=num_heads,
        head_dim=keys.integer("ssm.inner_size") // num_heads,
        num_groups=keys.integer("ssm.group_count"),
        state_size=keys.integer("ssm.state_size"),
        conv_kernel=keys.integer("ssm.conv_kernel"),
        has_conv_bias=any(name.endswith(".ssm_conv1d.bias") for name in keys.shapes),
        has_bias=any(name.endswith(".ssm_in.bias") for name in keys.shapes),
        decay=NEGATIVE_RATE,
    )


GRANITE_NAMES = LayerNames(
    gate_up=("mlp.shared_expert.input_linear",), down="mlp.shared_expert.output_linear"
)
BAMBA_NAMES = LayerNames(
    mlp_norm="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
MAMBA_TYPES = frozenset({"mamba", "linear_attention"})
ATTENTION_TYPES = frozenset({"attention", "full_attention"})


def read_granite(config: Json, generation: Json) -> ModelConfig:
    return read_llama(
        config,
        generation,
        attention_scale=float(config.get("attention_multiplier", 1.0)),
        embedding_multiplier=float(config.get("embedding_multiplier", 1.0)),
        residual_multiplier=float(config.get("residual_multiplier", 1.0)),
        logit_multiplier=1.0 / float(config.get("logits_scaling", 1.0)),
    )


def read_granite_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    mixers: tuple[MixerKind, ...] = ()
    if not is_rotated_gguf(keys, default=True):
        unrotated: MixerKind = "unrotated"
        mixers = (unrotated,) * keys.integer("block_count")
    multiplier = logit_multiplier_gguf(keys)
    return read_decoder_gguf(keys, model_type, mixers=mixers, logit_multiplier=multiplier)


def logit_multiplier_gguf(keys: GGUFKeys) -> float:
    return 1.0 / (keys.number("logit_scale", 0.0) or 1.0)


def is_rotated_gguf(keys: GGUFKeys, *, default: bool) -> bool:
    """llama.cpp's Granites say with this key whether heads are rotated."""
    return bool(keys.metadata.get(f"{keys.architecture}.rope.scaling.finetuned", default))


def read_granite4(config: Json, generation: Json) -> ModelConfig:
    inner = positive_integer(config, "shared_intermediate_size")
    is_rotated = config.get("position_embedding_type") == "rope"
    mixers = _granite_mixers(config, "attention" if is_rotated else "unrotated")
    return replace(
        read_granite(config, generation),
        intermediate_size=inner,
        mlp_bias=False,
        mixers=() if set(mixers) == {"attention"} else mixers,
        mamba=_read_mamba(config) if "mamba" in mixers else None,
        **_granite_experts(config, len(mixers), inner),
    )


def _granite_mixers(config: Json, attention: MixerKind) -> tuple[MixerKind, ...]:
    num_layers = positive_integer(config, "num_hidden_layers")
    listed = config.get("layer_types") or config.get("layers_block_type") or ["mamba"] * num_layers
    if others := sorted(set(listed) - MAMBA_TYPES - ATTENTION_TYPES):
        raise BadFileError(f"layers of the type {others[0]!r} are not supported")
    if len(listed) != num_layers:
        raise BadFileError(f"layer_types lists {len(listed)} of {num_layers} layers")
    return tuple("mamba" if kind in MAMBA_TYPES else attention for kind in listed)


def _granite_experts(config: Json, num_layers: int, shared: int) -> dict[str, Any]:
    if not config.get("num_local_experts", 8):
        return {}
    kind: MlpKind = "sparse"
    experts = experts_of(
        config,
        num_experts=positive_integer({"num_local_experts": 8, **config}, "num_local_experts"),
        intermediate_size=positive_integer(config, "intermediate_size"),
        scoring="softmax_of_chosen",
        normalizes=False,
        shared_intermediate_size=shared,
        gates_shared=False,
        shared_gate_up=("input_linear",),
        shared_down="output_linear",
    )
    return {"experts": experts, "mlps": (kind,) * num_layers}


def read_bamba(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu", "swish")
    attending = frozenset(config.get("attn_layer_indices") or ())
    num_layers = positive_integer(config, "num_hidden_layers")
    mixers: tuple[MixerKind, ...] = tuple(
        "attention" if index in attending else "mamba" for index in range(num_layers)
    )
    has_bias = bool(config.get("attention_bias", False))
    read = read_decoder(
        config,
        generation,
        mixers=mixers,
        mamba=_read_mamba(config) if "mamba" in mixers else None,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-5)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )
    return replace(read, rotary_dim=read.head_dim // 2)


def read_hybrid_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    attention: MixerKind = "unrotated"
    if is_rotated_gguf(keys, default=False):
        attention = "attention"
    mixers: tuple[MixerKind, ...] = tuple(
        "mamba" if keys.has_tensor(f"blk.{index}.ssm_in.weight") else attention
        for index in range(keys.integer("block_count"))
    )
    return read_decoder_gguf(
        keys,
        model_type,
        mixers=mixers,
        mamba=_read_mamba_gguf(keys),
        num_kv_heads=keys.heads_of_keys(),
        qkv_bias=any(name.endswith(".attn_q.bias") for name in keys.shapes),
        output_bias=any(name.endswith(".attn_output.bias") for name in keys.shapes),
        logit_multiplier=logit_multiplier_gguf(keys),
        **_gguf_mlps(keys),
    )


def _gguf_mlps(keys: GGUFKeys) -> dict[str, Any]:
    if not keys.find("expert_count"):
        shape = keys.shapes.get("blk.0.ffn_up.weight")
        return {} if shape is None else {"intermediate_size": shape[0]}
    fields = gguf_mixture(keys, normalizes=False)
    experts: ExpertsConfig = fields["experts"]
    return fields | {"experts": replace(experts, scoring="softmax_of_chosen", normalizes=False)}


GRANITE = Family(
    model_types=("granite",),
    gguf_architectures=("granite",),
    read_config=read_granite,
    read_gguf=read_granite_gguf,
    interleaved_heads=interleaved_heads,
)
BAMBA = Family(
    model_types=("bamba",),
    gguf_architectures=("granitehybrid",),
    read_config=read_bamba,
    read_gguf=read_hybrid_gguf,
    layer_names=BAMBA_NAMES,
    hub_name=renaming({"model.final_layernorm.": "model.norm."}),
    gguf_layer=MAMBA_LAYER,
    interleaved_heads=interleaved_heads,
)
GRANITE4 = Family(
    model_types=("granitemoehybrid",),
    read_config=read_granite4,
    layer_names=GRANITE_NAMES,
    hub_name=renaming(
        {
            ".shared_mlp.": ".mlp.shared_expert.",
            ".block_sparse_moe.input_linear.weight": ".mlp.experts.gate_up_proj",
            ".block_sparse_moe.output_linear.weight": ".mlp.experts.down_proj",
            ".block_sparse_moe.router.layer.": ".mlp.gate.",
            ".block_sparse_moe.router.": ".mlp.gate.",
            ".block_sparse_moe.": ".mlp.",
        }
    ),
)


NEMOTRON_NAMES = LayerNames(
    input_norm="norm",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    output="mixer.o_proj",
    mlp_norm="norm",
    gate_up=("mixer.up_proj",),
    down="mixer.down_proj",
)
NEMOTRON_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern``."""
NEMOTRON_LAYERS: dict[str, tuple[MixerKind, MlpKind]] = {
    "mamba": ("mamba", "none"),
    "linear_attention": ("mamba", "none"),
    "attention": ("unrotated", "none"),
    "full_attention": ("unrotated", "none"),
    "mlp": ("none", "dense"),
    "moe": ("none", "sparse"),
}


def read_nemotron_h(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "relu2", key="mlp_hidden_act")
    check_activation(config, "silu", key="mamba_hidden_act")
    layers = _nemotron_layers(config)
    mlps = tuple(mlp for _, mlp in layers)
    inner = config.get("intermediate_size") or config.get("moe_intermediate_size")
    return read_decoder(
        {**config, "num_hidden_layers": len(layers), "intermediate_size": inner},
        generation,
        mixers=tuple(mixer for mixer, _ in layers),
        mlps=mlps,
        mamba=_nemotron_mamba(config),
        experts=_nemotron_experts(config) if "sparse" in mlps else None,
        rms_norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        is_gated=False,
        activation="relu2",
    )


def _nemotron_layers(config: Json) -> list[tuple[MixerKind, MlpKind]]:
    listed = config.get("layers_block_type") or config.get("layer_types")
    if not listed:
        pattern = config.get("hybrid_override_pattern") or ""
        listed = [NEMOTRON_PATTERN.get(letter, letter) for letter in pattern]
    if unknown := sorted(set(listed) - NEMOTRON_LAYERS.keys()):
        raise BadFileError(f"layers of the type {unknown[0]!r} are not supported")
    if not listed:
        raise BadFileError("config.json lists no layers")
    return [NEMOTRON_LAYERS[name] for name in listed]


def _nemotron_mamba(config: Json) -> MambaConfig:
    return MambaConfig(
        num_heads=positive_integer(config, "mamba_num_heads"),
        head_dim=positive_integer(config, "mamba_head_dim"),
        num_groups=positive_integer(config, "n_groups"),
        state_size=positive_integer(config, "ssm_state_size"),
        conv_kernel=positive_integer({"conv_kernel": 4, **config}, "conv_kernel"),
        has_conv_bias=bool(config.get("use_conv_bias", True)),
        has_bias=bool(config.get("use_bias", False)),
        step_limit=_step_limit(config.get("time_step_limit")),
        prefix="mixer",
    )


def _nemotron_experts(config: Json) -> ExpertsConfig:
    if config.get("moe_latent_size"):
        raise BadFileError("experts of a narrower row (moe_latent_size) are not supported")
    return experts_of(
        config,
        num_experts=positive_integer(config, "n_routed_experts"),
        scoring="sigmoid",
        normalizes=bool(config.get("norm_topk_prob", True)),
        has_choice_bias=True,
        **groups_of(config),
        weight_scale=float(config.get("routed_scaling_factor", 1.0)),
        shared_intermediate_size=positive_integer(config, "moe_shared_expert_intermediate_size"),
        gates_shared=False,
        shared_gate_up=("up_proj",),
        is_gated=False,
    )


NEMOTRON_H = Family(
    model_types=("nemotron_h",),
    read_config=read_nemotron_h,
    layer_names=NEMOTRON_NAMES,
    hub_name=renaming(
        {
            "backbone.": "model.",
            "model.embeddings.": "model.embed_tokens.",
            "model.norm_f.": "model.norm.",
            ".mixer.experts.": ".mlp.experts.",
            ".mixer.shared_experts.": ".mlp.shared_expert.",
            ".mixer.gate.": ".mlp.gate.",
        }
    ),
    left_out={"mtp.": "multi-token prediction"},
)
FAMILIES = (GRANITE, GRANITE4, BAMBA, NEMOTRON_H)
