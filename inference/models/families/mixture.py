"""Reads what families with a mixture of experts share in config.json and in GGUF's keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference.models.config import MlpKind, ModelConfig
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import Json, positive_integer
from inference.models.layer_configs import ExpertsConfig, Scoring
from inference.protocol.load_errors import BadFileError


def experts_of(config: Json, **declared: Any) -> ExpertsConfig:
    common: dict[str, Any] = {
        "experts_per_token": positive_integer(config, "num_experts_per_tok"),
        "normalizes": bool(config.get("norm_topk_prob", False)),
    }
    if "num_experts" not in declared:
        key = "num_experts" if config.get("num_experts") else "num_local_experts"
        common["num_experts"] = positive_integer(config, key)
    if "intermediate_size" not in declared:
        common["intermediate_size"] = positive_integer(config, "moe_intermediate_size")
    return _checked(ExpertsConfig(**(common | declared)))


def mlps_of(config: Json) -> tuple[MlpKind, ...]:
    """Every ``decoder_sparse_step``-th layer is sparse, but for ``mlp_only_layers``."""
    step = int(config.get("decoder_sparse_step") or 1)
    dense = set(config.get("mlp_only_layers") or ())
    return tuple(
        "sparse" if index not in dense and (index + 1) % step == 0 else "dense"
        for index in range(positive_integer(config, "num_hidden_layers"))
    )


def routed_fields(config: Json, **declared: Any) -> dict[str, Any]:
    """By the keys of DeepSeek's kin. ``declared``: overriding fields of ``ExpertsConfig``."""
    inner = positive_integer(config, "moe_intermediate_size")
    common: dict[str, Any] = {
        "num_experts": positive_integer(config, "n_routed_experts"),
        "intermediate_size": inner,
        "scoring": "sigmoid",
        "normalizes": bool(config.get("norm_topk_prob")),
        "shared_intermediate_size": inner * int(config.get("n_shared_experts") or 0) or None,
        "gates_shared": False,
        "has_choice_bias": True,
        "weight_scale": float(config.get("routed_scaling_factor") or 1.0),
        **groups_of(config),
    }
    experts = experts_of(config, **(common | declared))
    mlps = sparse_behind(int(config.get("first_k_dense_replace") or 0), config)
    return {"mlps": mlps, "experts": experts}


def sparse_behind(num_dense: int, config: Json) -> tuple[MlpKind, ...]:
    num_layers = positive_integer(config, "num_hidden_layers")
    return tuple("dense" if index < num_dense else "sparse" for index in range(num_layers))


SHARED_EXPERTS = {".mlp.shared_experts.": ".mlp.shared_expert."}
"""Some files name the shared expert in the plural."""


def read_mixture_gguf(
    keys: GGUFKeys, model_type: str, *, normalizes: bool = False, **declared: Any
) -> ModelConfig:
    mixture = gguf_mixture(keys, normalizes=normalizes)
    return read_decoder_gguf(keys, model_type, **mixture, **declared)


def gguf_mixture(
    keys: GGUFKeys, *, normalizes: bool, num_layers: int | None = None, **declared: Any
) -> dict[str, Any]:
    """Fields of ``ModelConfig``. Sizes and layers are read from the tensors, because old files lack
    keys. ``declared``: fields of ``ExpertsConfig`` that override them."""
    stacks = {
        index: shape
        for index in range(keys.integer("block_count"))
        if (shape := keys.shapes.get(f"blk.{index}.ffn_down_exps.weight")) is not None
    }
    if not stacks:
        raise BadFileError(
            f"{keys.architecture}.expert_count names experts, and the file holds no stacked ones; "
            "convert it anew"
        )
    num_experts, _, inner = next(iter(stacks.values()))
    first = next(iter(stacks))
    shared = keys.shapes.get(f"blk.{first}.ffn_down_shexp.weight")
    experts = ExpertsConfig(
        num_experts=num_experts,
        experts_per_token=keys.integer("expert_used_count"),
        intermediate_size=inner,
        normalizes=bool(keys.metadata.get(f"{keys.architecture}.expert_weights_norm", normalizes)),
        shared_intermediate_size=None if shared is None else shared[1],
        gates_shared=keys.has_tensor(f"blk.{first}.ffn_gate_inp_shexp.weight"),
        scoring=_gguf_scoring(keys),
        has_choice_bias=keys.has_tensor(f"blk.{first}.exp_probs_b.bias"),
        num_groups=keys.integer("expert_group_count", 1),
        groups_per_token=keys.integer("expert_group_used_count", 1),
        weight_scale=keys.number("expert_weights_scale", 1.0) or 1.0,
    )
    experts = replace(experts, **declared)
    mlps: tuple[MlpKind, ...] = tuple(
        "sparse" if index in stacks else "dense"
        for index in range(keys.integer("block_count") if num_layers is None else num_layers)
    )
    return {
        "experts": _checked(experts),
        "mlps": mlps,
        "intermediate_size": keys.integer("feed_forward_length", inner),
    }


GATINGS: dict[int, Scoring] = {1: "softmax", 2: "sigmoid"}
"""The scoring by the number of llama.cpp's ``expert_gating_func``."""


def _gguf_scoring(keys: GGUFKeys) -> Scoring:
    scoring = GATINGS.get(keys.integer("expert_gating_func", 1))
    if scoring is None:
        raise BadFileError("experts are chosen by a rule other than softmax and sigmoid")
    return scoring


def _checked(experts: ExpertsConfig) -> ExpertsConfig:
    if experts.experts_per_token > experts.num_experts:
        raise BadFileError(
            f"{experts.experts_per_token} experts per token are more than {experts.num_experts}"
        )
    if experts.num_groups > 1:
        _check_groups(experts)
    return experts


def _check_groups(experts: ExpertsConfig) -> None:
    num_groups, num_chosen = experts.num_groups, experts.groups_per_token
    if experts.scoring == "softmax_of_chosen":
        raise BadFileError("experts of groups are weighed before they are chosen, not after")
    least = experts.group_experts
    if experts.num_experts % num_groups or experts.experts_per_group < least:
        more = {1: "one", 2: "two"}[least]
        raise BadFileError(
            f"{experts.num_experts} experts are not {num_groups} groups of the same {more} or more"
        )
    if num_chosen > num_groups:
        raise BadFileError(f"{num_chosen} groups per token are more than {num_groups}")
    if num_chosen * experts.experts_per_group < experts.experts_per_token:
        raise BadFileError(
            f"{num_chosen} groups of {experts.experts_per_group} experts are fewer than the "
            f"{experts.experts_per_token} that a token has"
        )


def groups_of(config: Json) -> dict[str, int]:
    """Fields of ``ExpertsConfig`` by the keys of DeepSeek's kin."""
    keys = {"num_groups": "n_group", "groups_per_token": "topk_group"}
    return {
        name: 1 if config.get(key) is None else positive_integer(config, key)
        for name, key in keys.items()
    }
