"""What the hybrids share: most layers are Gated DeltaNet, every few are attention with a gate on
what comes out; a part of each head is rotated, and norms' weights are stored less one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from inference.models.config import MixerKind, ModelConfig
from inference.models.families.decoder_tensors import (
    ATTENTION_NAMES,
    MODEL_NAMES,
    column,
    row,
)
from inference.models.families.family import GGUFNames, Json, Section, TensorRole
from inference.models.families.gguf_keys import PREDICTING_LAYERS, GGUFKeys
from inference.models.families.hub_config import positive_integer, rope_parameters
from inference.models.families.mixture import (
    EXPERT_NAMES,
    experts_of,
    gguf_mixture,
    mixture_tensors,
    mlps_of,
)
from inference.models.families.predictor import predictor_tensors
from inference.models.layers.configs import NEGATIVE_RATE, DeltaConfig, DeltaNames
from inference.protocol.load_errors import BadFileError

DEFAULT_INTERVAL = 4
"""Every fourth layer is attention, where no interval is declared."""
DEFAULT_ROTARY_FACTOR = 0.25

KINDS: Mapping[str, MixerKind] = {"linear_attention": "delta", "full_attention": "attention"}

GGUF_LAYER_NAMES = (
    ATTENTION_NAMES
    | EXPERT_NAMES
    | {
        "post_attention_norm": "post_attention_layernorm",
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
)


def hybrid_fields(config: Json, names: DeltaNames) -> dict[str, Any]:
    """The fields of ``ModelConfig`` that ``config``, of the text model, declares of all this.
    Raises ``BadFileError``."""
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


def sparse_fields(config: Json, *, normalizes: bool) -> dict[str, Any]:
    """The fields of hybrids with a mixture of experts beside one that all rows go through.
    ``normalizes``: the default where config.json has none. Raises ``BadFileError``."""
    return {
        "experts": experts_of(
            config,
            normalizes=bool(config.get("norm_topk_prob", normalizes)),
            shared_intermediate_size=positive_integer(config, "shared_expert_intermediate_size"),
        ),
        "mlps": mlps_of(config),
        "intermediate_size": int(config.get("intermediate_size") or 0)
        or positive_integer(config, "moe_intermediate_size"),
    }


def _mixers(config: Json) -> tuple[MixerKind, ...]:
    num_layers = positive_integer(config, "num_hidden_layers")
    declared = config.get("layer_types")
    if declared is None:
        return mixers_by_interval(
            num_layers, int(config.get("full_attention_interval") or DEFAULT_INTERVAL)
        )
    if len(declared) != num_layers or not set(declared) <= KINDS.keys():
        known = ", ".join(KINDS)
        raise BadFileError(f"layer_types is not {num_layers} times one of {known}")
    return tuple(KINDS[kind] for kind in declared)


def mixers_by_interval(num_layers: int, interval: int) -> tuple[MixerKind, ...]:
    """The last of every ``interval`` layers is attention."""
    return tuple("delta" if (index + 1) % interval else "attention" for index in range(num_layers))


def _rotary_dim(config: Json) -> int:
    factor = rope_parameters(config).get("partial_rotary_factor")
    if factor is None:
        factor = config.get("partial_rotary_factor", DEFAULT_ROTARY_FACTOR)
    return int(positive_integer(config, "head_dim") * float(factor))


def gguf_fields(
    keys: GGUFKeys, names: DeltaNames, *, are_value_heads_tiled: bool
) -> dict[str, Any]:
    """The same from a GGUF's keys. llama.cpp's converter has added the one to norms' weights, and
    has put the negated rate of forgetting in place of its logarithm. Layers that predict further
    tokens come last and are left out. Raises ``BadFileError``."""
    num_layers = keys.integer("block_count") - (keys.find(PREDICTING_LAYERS) or 0)
    num_value_heads = keys.integer("ssm.time_step_rank")
    return {
        "num_layers": num_layers,
        "mixers": mixers_by_interval(
            num_layers, keys.integer("full_attention_interval", DEFAULT_INTERVAL)
        ),
        "delta": DeltaConfig(
            num_key_heads=keys.integer("ssm.group_count"),
            num_value_heads=num_value_heads,
            key_head_dim=keys.integer("ssm.state_size"),
            value_head_dim=keys.integer("ssm.inner_size") // num_value_heads,
            conv_kernel=keys.integer("ssm.conv_kernel"),
            are_value_heads_tiled=are_value_heads_tiled,
            names=replace(names, decay=NEGATIVE_RATE),
        ),
        "rotary_dim": keys.integer("rope.dimension_count"),
        "has_output_gate": True,
        "qk_norm": True,
    }


def gguf_sparse_fields(keys: GGUFKeys, num_layers: int) -> dict[str, Any]:
    """The same from a GGUF's keys and tensors. Raises ``BadFileError``."""
    fields = gguf_mixture(keys, normalizes=True)
    return fields | {"mlps": fields["mlps"][:num_layers]}


def hybrid_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    yield from mixture_tensors(config, state_tensors=delta_tensors)
    if config.has_predictor:
        yield from predictor_tensors(config)


def delta_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """The tensors of a Gated DeltaNet layer."""
    delta, hidden = config.delta, config.hidden_size
    assert delta is not None
    prefix, names, heads = "linear_attn.", delta.names, delta.num_value_heads
    keys = _of_key_heads(delta, delta.key_head_dim)
    of_heads, values = _of_value_heads(delta, 1), _of_value_heads(delta, delta.value_head_dim)
    conv = keys, keys, *values
    if names.is_qkvz_grouped:
        each = 2 * (delta.key_features + delta.value_features) // delta.num_key_heads
        yield from column(prefix + names.qkvz[0], hidden, _of_key_heads(delta, each))
    else:
        yield from column(prefix + names.qkvz[0], hidden, *conv)
        yield from column(prefix + names.qkvz[1], hidden, *values)
    for name in names.ba:
        shape = 2 * heads // len(names.ba), hidden
        both = (_of_key_heads(delta, 2 * heads // delta.num_key_heads),)
        sections = both if names.is_ba_grouped else of_heads
        yield TensorRole(f"{prefix}{name}.weight", "state", shape, sections=sections)
    channels, kernel = delta.conv_channels, delta.conv_kernel
    yield TensorRole(f"{prefix}conv1d.weight", "conv", (channels, 1, kernel), sections=conv)
    yield TensorRole(f"{prefix}{names.decay}", "state", (heads,), sections=of_heads)
    yield TensorRole(f"{prefix}dt_bias", "state", (heads,), sections=of_heads)
    yield TensorRole(f"{prefix}norm.weight", "norm", (delta.value_head_dim,))
    yield from row(f"{prefix}out_proj", hidden, *values)


def _of_value_heads(delta: DeltaConfig, width: int) -> tuple[Section, ...]:
    """Features of all value heads, ``width`` each, with the key head that each belongs to:

    by key head   [ 0 0 1 1 2 2 ]    tiled   [ 0 1 2 ][ 0 1 2 ]
    """
    per_key_head = delta.num_value_heads // delta.num_key_heads
    if delta.are_value_heads_tiled:
        return (_of_key_heads(delta, width),) * per_key_head
    return (_of_key_heads(delta, per_key_head * width),)


def _of_key_heads(delta: DeltaConfig, width: int) -> Section:
    return Section("key_heads", delta.num_key_heads, width)


def gguf_names(mlp_names: Mapping[str, str]) -> GGUFNames:
    return GGUFNames(model=MODEL_NAMES, layer={**GGUF_LAYER_NAMES, **mlp_names})
