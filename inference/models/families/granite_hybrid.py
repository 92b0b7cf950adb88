"""Granite 4 and Bamba: layers of Mamba-2 or attention, with an MLP; Granite's may be a mixture with
that MLP beside its experts, and has a multiplier at every joint. Of Granite 4, some attend in every
layer.

GGUF calls both ``granitehybrid``, and holds an MLP's gates apart as Bamba's files do: what it holds
is read as a Bamba with those multipliers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from inference.models.config import MixerKind, MlpKind, ModelConfig
from inference.models.families.decoder_tensors import (
    ATTENTION_NAMES,
    DECODER,
    MODEL_NAMES,
)
from inference.models.families.family import Family, GGUFNames
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.granite import (
    is_rotated_gguf,
    logit_multiplier_gguf,
    read_config,
)
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    read_decoder,
)
from inference.models.families.layer_names import LayerNames
from inference.models.families.llama import interleaved_heads
from inference.models.families.mamba import (
    GGUF_LAYER_NAMES,
    mamba_hybrid_tensors,
    read_mamba,
    read_mamba_gguf,
)
from inference.models.families.mixture import EXPERT_NAMES, experts_of, gguf_mixture
from inference.models.layers.configs import ExpertsConfig
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


def read_granite4(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
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
    """Raises ``BadFileError``."""
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


def granite_hub_name(name: str) -> str:
    """Renames experts, and the one that all rows go through, to what other mixtures call them."""
    for theirs, ours in (
        (".shared_mlp.", ".mlp.shared_expert."),
        (".block_sparse_moe.input_linear.weight", ".mlp.experts.gate_up_proj"),
        (".block_sparse_moe.output_linear.weight", ".mlp.experts.down_proj"),
        (".block_sparse_moe.router.layer.", ".mlp.gate."),
        (".block_sparse_moe.router.", ".mlp.gate."),
        (".block_sparse_moe.", ".mlp."),
    ):
        name = name.replace(theirs, ours)
    return name


def read_bamba(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
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


def bamba_hub_name(name: str) -> str:
    return name.replace("model.final_layernorm.", "model.norm.")


def read_gguf(keys: GGUFKeys) -> ModelConfig:
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
    """Raises ``BadFileError``."""
    if not keys.find("expert_count"):
        shape = keys.shapes.get("blk.0.ffn_up.weight")
        return {} if shape is None else {"intermediate_size": shape[0]}
    fields = gguf_mixture(keys, normalizes=False)
    experts: ExpertsConfig = fields["experts"]
    return fields | {"experts": replace(experts, scoring="softmax_of_chosen", normalizes=False)}


BAMBA = Family(
    name="Bamba",
    model_types=("bamba",),
    gguf_architectures=("granitehybrid",),
    read_config=read_bamba,
    read_gguf=read_gguf,
    tensors=partial(mamba_hybrid_tensors, names=BAMBA_NAMES),
    layer_names=BAMBA_NAMES,
    hub_name=bamba_hub_name,
    gguf_names=GGUFNames(
        model=MODEL_NAMES,
        layer={
            **ATTENTION_NAMES,
            **GGUF_LAYER_NAMES,
            **EXPERT_NAMES,
            "ffn_norm": "pre_ff_layernorm",
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        },
    ),
    interleaved_heads=interleaved_heads,
    builder=DECODER,
)
GRANITE4 = Family(
    name="Granite 4",
    model_types=("granitemoehybrid",),
    gguf_shared=("granite", "granitehybrid"),
    read_config=read_granite4,
    tensors=partial(mamba_hybrid_tensors, names=GRANITE_NAMES),
    layer_names=GRANITE_NAMES,
    hub_name=granite_hub_name,
    builder=DECODER,
)
