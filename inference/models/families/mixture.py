"""What families with a mixture of experts share: their tensors, by Hugging Face's names and GGUF's,
and how both kinds of files declare the experts.

Hugging Face's files hold each expert by itself, GGUF holds a layer's in one tensor; both come out
of ``loading/weights/expert_files.py`` one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from inference.models.config import STATE_KINDS, MlpKind, ModelConfig
from inference.models.families.decoder_tensors import (
    DECODER_NAMES,
    DEFAULT_NAMES,
    attention_tensors,
    column,
    in_layer,
    mlp_tensors,
    norm_tensors,
    outer_tensors,
    row,
)
from inference.models.families.family import GGUFNames, Section, TensorRole
from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.hub_config import Json, positive_integer
from inference.models.families.latent import latent_tensors
from inference.models.families.layer_names import LayerNames
from inference.models.layers.configs import ExpertsConfig, Scoring
from inference.protocol.load_errors import BadFileError

EXPERT_NAMES = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MIXTURE_NAMES = GGUFNames(model=DECODER_NAMES.model, layer={**DECODER_NAMES.layer, **EXPERT_NAMES})


def mixture_tensors(
    config: ModelConfig,
    names: LayerNames = DEFAULT_NAMES,
    state_tensors: Callable[[ModelConfig], Iterator[TensorRole]] | None = None,
) -> Iterator[TensorRole]:
    """The tensors of a decoder whose MLPs may be mixtures. ``state_tensors``: those of a layer that
    keeps a state in the place of attention, where some do."""
    yield from outer_tensors(config)
    for index, (mixer, mlp) in enumerate(zip(config.mixer_kinds, config.mlp_kinds, strict=True)):
        yield from (in_layer(index, tensor) for tensor in norm_tensors(config, names))
        if mixer == "latent":
            of_mixer = latent_tensors(config)
        elif mixer in STATE_KINDS and state_tensors is not None:
            of_mixer = state_tensors(config)
        else:
            of_mixer = attention_tensors(config, names)
        of_mlp = sparse_tensors(config) if mlp == "sparse" else mlp_tensors(config, names)
        yield from (in_layer(index, tensor) for tensor in (*of_mixer, *of_mlp))


def sparse_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """The tensors of one layer's mixture."""
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None, "its layers are sparse"
    count, inner = experts.num_experts, experts.intermediate_size
    all_experts = (Section("experts", count),)
    yield TensorRole("mlp.gate.weight", "router", (count, hidden))
    if experts.has_bias:
        yield TensorRole("mlp.gate.bias", "router", (count,))
    if experts.has_choice_bias:
        bias = "mlp.gate.e_score_correction_bias"
        yield TensorRole(bias, "router", (count,), may_be_folded=True)
    for name, shape in (
        ("gate_proj", (inner, hidden)),
        ("up_proj", (inner, hidden)),
        ("down_proj", (hidden, inner)),
    ):
        if name == "gate_proj" and not experts.is_gated:
            continue
        parts = tuple(f"mlp.experts.{index}.{name}.weight" for index in range(count))
        weight = f"mlp.experts.{name}.weight"
        yield TensorRole(weight, "experts", (count, *shape), parts, all_experts)
        if experts.has_bias:
            biases = tuple(part.replace(".weight", ".bias") for part in parts)
            bias = f"mlp.experts.{name}.bias"
            yield TensorRole(bias, "norm", (count, shape[0]), biases, all_experts)
    if experts.shared_intermediate_size is None:
        return
    if experts.gates_shared:
        yield TensorRole("mlp.shared_expert_gate.weight", "router", (1, hidden))
    shared = Section("shared_inner", experts.shared_intermediate_size)
    stacked = (shared,) * ((1 + experts.is_gated) // len(experts.shared_gate_up))
    for name in experts.shared_gate_up:
        yield from column(f"mlp.shared_expert.{name}", hidden, *stacked)
    yield from row(f"mlp.shared_expert.{experts.shared_down}", hidden, shared)


def experts_of(config: Json, **declared: Any) -> ExpertsConfig:
    """``declared``: fields that the family knows better than config.json's common keys."""
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


def gguf_mixture(keys: GGUFKeys, *, normalizes: bool, **declared: Any) -> dict[str, Any]:
    """Fields of ``ModelConfig``. Sizes and kinds of layers are those of the tensors, because files
    that are older than a key do not have it. ``declared``: fields of ``ExpertsConfig`` that the
    family knows better. Raises ``BadFileError``."""
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
        "sparse" if index in stacks else "dense" for index in range(keys.integer("block_count"))
    )
    return {
        "experts": _checked(experts),
        "mlps": mlps,
        "intermediate_size": keys.integer("feed_forward_length", inner),
    }


GATINGS: dict[int, Scoring] = {1: "softmax", 2: "sigmoid"}
"""The scoring by the number of llama.cpp's ``expert_gating_func``."""


def _gguf_scoring(keys: GGUFKeys) -> Scoring:
    """Raises ``BadFileError``."""
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
    """Raises ``BadFileError``."""
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
    """Fields of ``ExpertsConfig`` by the keys of DeepSeek's kin. Raises ``BadFileError``."""
    keys = {"num_groups": "n_group", "groups_per_token": "topk_group"}
    return {
        name: 1 if config.get(key) is None else positive_integer(config, key)
        for name, key in keys.items()
    }
