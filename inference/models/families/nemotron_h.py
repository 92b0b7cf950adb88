"""Nemotron-H and Nemotron 3: a layer is Mamba-2, attention without rotation, an MLP or a mixture of
experts, and nothing else. Neither MLPs nor experts have gates."""

from __future__ import annotations

from inference.models.config import MixerKind, MlpKind, ModelConfig
from inference.models.families.family import Family, renaming
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    read_decoder,
)
from inference.models.families.mamba import step_limit
from inference.models.families.mixture import experts_of, groups_of
from inference.models.families.roles import LayerNames
from inference.models.layer_configs import ExpertsConfig, MambaConfig
from inference.protocol.load_errors import BadFileError

NAMES = LayerNames(
    input_norm="norm",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    output="mixer.o_proj",
    mlp_norm="norm",
    gate_up=("mixer.up_proj",),
    down="mixer.down_proj",
)
PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern``."""
LAYERS: dict[str, tuple[MixerKind, MlpKind]] = {
    "mamba": ("mamba", "none"),
    "linear_attention": ("mamba", "none"),
    "attention": ("unrotated", "none"),
    "full_attention": ("unrotated", "none"),
    "mlp": ("none", "dense"),
    "moe": ("none", "sparse"),
}


def read_config(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "relu2", key="mlp_hidden_act")
    check_activation(config, "silu", key="mamba_hidden_act")
    layers = _layers(config)
    mlps = tuple(mlp for _, mlp in layers)
    inner = config.get("intermediate_size") or config.get("moe_intermediate_size")
    return read_decoder(
        {**config, "num_hidden_layers": len(layers), "intermediate_size": inner},
        generation,
        mixers=tuple(mixer for mixer, _ in layers),
        mlps=mlps,
        mamba=_mamba(config),
        experts=_experts(config) if "sparse" in mlps else None,
        rms_norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        is_gated=False,
        activation="relu2",
    )


def _layers(config: Json) -> list[tuple[MixerKind, MlpKind]]:
    listed = config.get("layers_block_type") or config.get("layer_types")
    if not listed:
        pattern = config.get("hybrid_override_pattern") or ""
        listed = [PATTERN.get(letter, letter) for letter in pattern]
    if unknown := sorted(set(listed) - LAYERS.keys()):
        raise BadFileError(f"layers of the type {unknown[0]!r} are not supported")
    if not listed:
        raise BadFileError("config.json lists no layers")
    return [LAYERS[name] for name in listed]


def _mamba(config: Json) -> MambaConfig:
    return MambaConfig(
        num_heads=positive_integer(config, "mamba_num_heads"),
        head_dim=positive_integer(config, "mamba_head_dim"),
        num_groups=positive_integer(config, "n_groups"),
        state_size=positive_integer(config, "ssm_state_size"),
        conv_kernel=positive_integer({"conv_kernel": 4, **config}, "conv_kernel"),
        has_conv_bias=bool(config.get("use_conv_bias", True)),
        has_bias=bool(config.get("use_bias", False)),
        step_limit=step_limit(config.get("time_step_limit")),
        prefix="mixer",
    )


def _experts(config: Json) -> ExpertsConfig:
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
    name="Nemotron-H",
    model_types=("nemotron_h",),
    read_config=read_config,
    layer_names=NAMES,
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
FAMILIES = (NEMOTRON_H,)
