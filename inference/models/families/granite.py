"""Granite 3 is llama's layers with a multiplier at every joint. Granite 4 and Bamba have layers of
Mamba-2 or attention, with an MLP; Granite's may be a mixture with that MLP beside its experts, and
some Granite 4 attend in every layer.

GGUF calls both ``granitehybrid``, and holds an MLP's gates apart as Bamba's files do: such a file
is read as a Bamba with Granite's multipliers.
"""

from __future__ import annotations

from dataclasses import replace
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
from inference.models.families.mamba import MAMBA_LAYER, read_mamba, read_mamba_gguf
from inference.models.families.mixture import experts_of, gguf_mixture
from inference.models.families.roles import LayerNames
from inference.models.layer_configs import ExpertsConfig
from inference.protocol.load_errors import BadFileError

GRANITE_NAMES = LayerNames(
    gate_up=("mlp.shared_expert.input_linear",), down="mlp.shared_expert.output_linear"
)
BAMBA_NAMES = LayerNames(
    mlp_norm="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
MAMBA_KINDS = frozenset({"mamba", "linear_attention"})
ATTENTION_KINDS = frozenset({"attention", "full_attention"})


def read_config(config: Json, generation: Json) -> ModelConfig:
    return read_llama(
        config,
        generation,
        attention_scale=float(config.get("attention_multiplier", 1.0)),
        embedding_multiplier=float(config.get("embedding_multiplier", 1.0)),
        residual_multiplier=float(config.get("residual_multiplier", 1.0)),
        logit_multiplier=1.0 / float(config.get("logits_scaling", 1.0)),
    )


def read_granite_gguf(keys: GGUFKeys) -> ModelConfig:
    mixers: tuple[MixerKind, ...] = ()
    if not is_rotated_gguf(keys, default=True):
        unrotated: MixerKind = "unrotated"
        mixers = (unrotated,) * keys.integer("block_count")
    multiplier = logit_multiplier_gguf(keys)
    return read_decoder_gguf(keys, "granite", mixers=mixers, logit_multiplier=multiplier)


def logit_multiplier_gguf(keys: GGUFKeys) -> float:
    """Raises ``BadFileError``."""
    return 1.0 / (keys.number("logit_scale", 0.0) or 1.0)


def is_rotated_gguf(keys: GGUFKeys, *, default: bool) -> bool:
    """llama.cpp's Granites say with this key whether heads are rotated."""
    return bool(keys.metadata.get(f"{keys.architecture}.rope.scaling.finetuned", default))


def read_granite4(config: Json, generation: Json) -> ModelConfig:
    inner = positive_integer(config, "shared_intermediate_size")
    is_rotated = config.get("position_embedding_type") == "rope"
    mixers = _granite_mixers(config, "attention" if is_rotated else "unrotated")
    return replace(
        read_config(config, generation),
        intermediate_size=inner,
        mlp_bias=False,
        mixers=() if set(mixers) == {"attention"} else mixers,
        mamba=read_mamba(config) if "mamba" in mixers else None,
        **_granite_experts(config, len(mixers), inner),
    )


def _granite_mixers(config: Json, attention: MixerKind) -> tuple[MixerKind, ...]:
    num_layers = positive_integer(config, "num_hidden_layers")
    listed = config.get("layer_types") or config.get("layers_block_type") or ["mamba"] * num_layers
    if others := sorted(set(listed) - MAMBA_KINDS - ATTENTION_KINDS):
        raise BadFileError(f"layers of the type {others[0]!r} are not supported")
    if len(listed) != num_layers:
        raise BadFileError(f"layer_types lists {len(listed)} of {num_layers} layers")
    return tuple("mamba" if kind in MAMBA_KINDS else attention for kind in listed)


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
        mamba=read_mamba(config) if "mamba" in mixers else None,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-5)),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )
    return replace(read, rotary_dim=read.head_dim // 2)


def read_hybrid_gguf(keys: GGUFKeys) -> ModelConfig:
    """Infers from their tensors which layers are Mamba-2. Raises ``BadFileError``."""
    attention: MixerKind = "unrotated"
    if is_rotated_gguf(keys, default=False):
        attention = "attention"
    mixers: tuple[MixerKind, ...] = tuple(
        "mamba" if keys.has_tensor(f"blk.{index}.ssm_in.weight") else attention
        for index in range(keys.integer("block_count"))
    )
    return read_decoder_gguf(
        keys,
        "bamba",
        mixers=mixers,
        mamba=read_mamba_gguf(keys),
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
    name="Granite 3",
    model_types=("granite",),
    gguf_architectures=("granite",),
    read_config=read_config,
    read_gguf=read_granite_gguf,
    interleaved_heads=interleaved_heads,
)
BAMBA = Family(
    name="Bamba",
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
    name="Granite 4",
    model_types=("granitemoehybrid",),
    gguf_shared=("granite", "granitehybrid"),
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
FAMILIES = (GRANITE, GRANITE4, BAMBA)
