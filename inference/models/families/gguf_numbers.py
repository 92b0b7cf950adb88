"""Checks metadata keys that change numbers against the config read from the file: the file is
refused by a key whose value the model would not compute with. Keys: llama.cpp's
gguf-py/gguf/constants.py. Other keys settle shapes or change nothing here."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys
from inference.protocol.load_errors import BadFileError

OFF, OFF_OR_1 = (0,), (0, 1)
Accepted = tuple[Any, ...] | None
"""A key's values that the model computes; ``None``: it has nothing of the kind."""

GATING_NUMBERS = {"softmax": (0, 1), "sigmoid": (0, 2), "softmax_of_chosen": (0, 1, 3)}
"""llama.cpp's ``expert_gating_func``; 0 is the architecture's own."""


def read_gguf(family: Family, keys: GGUFKeys) -> ModelConfig:
    config = family.read_gguf(keys, family.model_types[0])
    check_computed(keys, config)
    return config


def check_computed(keys: GGUFKeys, config: ModelConfig, but: Collection[str] = ()) -> None:
    """``but``: keys that are read elsewhere."""
    for key, computed in COMPUTED.items():
        value = keys.metadata.get(f"{keys.architecture}.{key}")
        if value is None or key in but:
            continue
        accepted = computed(config, keys) if callable(computed) else computed
        if accepted is not None and not any(_is_same(value, one) for one in accepted):
            raise BadFileError(
                f"{keys.architecture}.{key} is {value!r}, which is not supported: a "
                f"{config.architecture} is computed with {_in_words(accepted[0])} here"
            )


def _is_same(value: Any, computed: Any) -> bool:
    if isinstance(computed, list):
        return bool(value == computed)
    if isinstance(value, list):
        return all(_is_same(item, computed) for item in value)
    if not isinstance(value, int | float) or computed is None:
        return False
    if math.isnan(value):
        return math.isnan(computed)  # it is refused as a number of the config
    return math.isclose(value, computed, rel_tol=1e-5)


def _in_words(computed: Any) -> str:
    return "none" if computed in (0, None) and computed is not False else repr(computed)


def _factor(value: float) -> Accepted:
    return (value, 0) if value == 1.0 else (value,)


def _logit_scale(config: ModelConfig, _keys: GGUFKeys) -> Accepted:
    """Some architectures multiply by the file's value, and Granite divides by it."""
    multiplier = config.logit_multiplier
    return _factor(multiplier) if multiplier == 1.0 else (multiplier, 1 / multiplier)


def _normalizes(config: ModelConfig, keys: GGUFKeys) -> Accepted:
    """A softmax over the chosen experts is one over all whose chosen weights add up to one."""
    experts = config.experts
    if experts is None:
        return None
    if experts.scoring != "softmax_of_chosen":
        return (experts.normalizes,)
    return (True, False) if keys.find("expert_gating_func") == 3 else (True,)


def _groups(config: ModelConfig, _keys: GGUFKeys) -> Accepted:
    if config.experts is None:
        return None
    return (config.experts.num_groups, *((0,) if config.experts.num_groups == 1 else ()))


def _chosen_groups(config: ModelConfig, _keys: GGUFKeys) -> Accepted:
    if config.experts is None or config.experts.num_groups == 1:
        return None
    return (config.experts.groups_per_token,)


def _interval(config: ModelConfig, _keys: GGUFKeys) -> Accepted:
    kinds = config.mixer_kinds
    return (kinds.index("attention") + 1 if "delta" in kinds and "attention" in kinds else 0,)


def _window(config: ModelConfig, keys: GGUFKeys) -> Accepted:
    """A window that no context reaches is none."""
    declared = keys.find("attention.sliding_window") or 0
    window = config.sliding_window or config.chunk_tokens
    if window is None and declared >= config.max_positions:
        return None
    return (window or 0,)


def _windowed_layers(config: ModelConfig, keys: GGUFKeys) -> Accepted:
    """Listed layer by layer, or as a period whose last layer sees all."""
    if config.sliding_window is None and not keys.find("attention.sliding_window"):
        return None
    kinds = config.mixer_kinds
    layers = [kind in ("sliding", "chunked") for kind in kinds]
    periods = [
        period
        for period in range(1, len(layers) + 1)
        if layers == [(index + 1) % period != 0 for index in range(len(layers))]
    ]
    return layers, *periods


def _rotates(config: ModelConfig) -> bool:
    return bool({"attention", "sliding", "chunked", "latent"} & set(config.mixer_kinds))


def _rotary_dim(config: ModelConfig, _keys: GGUFKeys) -> Accepted:
    if not _rotates(config):
        return None
    if config.latent is not None:
        return (config.latent.rotary_dim,)
    return (config.rotary_dim or config.head_dim,)


def _sliding_theta(config: ModelConfig, _keys: GGUFKeys) -> Accepted:
    if "sliding" not in config.mixer_kinds:
        return None
    return (config.sliding_rope_theta or config.rope_theta,)


def _norm_epsilon(is_layer_norm: bool) -> Callable[[ModelConfig, GGUFKeys], Accepted]:
    def computed(config: ModelConfig, _keys: GGUFKeys) -> Accepted:
        return (config.rms_norm_eps,) if (config.norm == "layer") is is_layer_norm else None

    return computed


COMPUTED: dict[str, Accepted | Callable[[ModelConfig, GGUFKeys], Accepted]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": OFF,
    "attention.indexer.top_k": OFF,
    "attention.layer_norm_epsilon": _norm_epsilon(True),
    "attention.layer_norm_rms_epsilon": _norm_epsilon(False),
    "attention.max_alibi_bias": OFF,
    "attention.output_scale": OFF_OR_1,
    "attention.scale": lambda config, keys: (config.attention_scale or config.head_dim**-0.5, 0),
    "attention.shared_kv_layers": OFF,
    "attention.sliding_window": _window,
    "attention.sliding_window_pattern": _windowed_layers,
    "attention.temperature_length": lambda config, keys: (
        (config.query_growth.positions,) if config.query_growth else None
    ),
    "attention.temperature_scale": lambda config, keys: (
        config.query_growth.beta if config.query_growth else 0,
    ),
    "activation_sparsity_scale": OFF,
    "attn_logit_softcapping": lambda config, keys: (config.attention_soft_cap or 0,),
    "embedding_scale": lambda config, keys: _factor(config.embedding_multiplier),
    "expert_count": lambda config, keys: (config.experts.num_experts if config.experts else 0,),
    "expert_gating_func": lambda config, keys: (
        GATING_NUMBERS[config.experts.scoring] if config.experts else None
    ),
    "expert_group_count": _groups,
    "expert_group_scale": OFF_OR_1,
    "expert_group_used_count": _chosen_groups,
    "expert_used_count": lambda config, keys: (
        (config.experts.experts_per_token,) if config.experts else None
    ),
    "expert_weights_norm": _normalizes,
    "expert_weights_scale": lambda config, keys: (
        _factor(config.experts.weight_scale) if config.experts else None
    ),
    "final_logit_softcapping": lambda config, keys: (config.logit_soft_cap or 0,),
    "full_attention_interval": _interval,
    "logit_scale": _logit_scale,
    "moe_latent_size": OFF,
    "nextn_predict_layers": lambda config, keys: (keys.integer("block_count") - config.num_layers,),
    "residual_scale": lambda config, keys: _factor(config.residual_multiplier),
    "rope.dimension_count": _rotary_dim,
    "rope.dimension_count_swa": lambda config, keys: (
        _rotary_dim(config, keys) if "sliding" in config.mixer_kinds else None
    ),
    "rope.freq_base": lambda config, keys: (config.rope_theta,) if _rotates(config) else None,
    "rope.freq_base_swa": _sliding_theta,
    "router_logit_softcapping": OFF,
    "ssm.dt_b_c_rms": OFF,
    "swiglu_clamp_exp": lambda config, keys: ((config.experts and config.experts.limit) or 0,),
    "swiglu_clamp_shexp": OFF,
    "swin_norm": OFF,
    "use_parallel_residual": lambda config, keys: (config.is_parallel,),
}
