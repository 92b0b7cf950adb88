"""Hybrids of a few numbers whose layers keep states of other kinds, as transformers builds them."""

from __future__ import annotations

import functools
from copy import deepcopy
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.inference.models.families.tiny_hybrid import CONTEXT_TOKENS, VOCAB_SIZE, randomised

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
CONVS = {"layer_types": ["conv", "full_attention", "conv", "conv"]}
MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def build(model_type: str, seed: int, own: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **deepcopy(COMMON | own))
    return randomised(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


@functools.cache
def lfm2() -> PreTrainedModel:
    """Its MLP is narrower than declared. Not to be changed: it is shared."""
    return build("lfm2", 10, CONVS | {"block_multiple_of": 16})


@functools.cache
def biased_lfm2() -> PreTrainedModel:
    """Which llama.cpp does not know. Not to be changed: it is shared."""
    reference = build("lfm2", 16, CONVS | {"conv_bias": True})
    for name, parameter in reference.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return reference


@functools.cache
def lfm2_moe() -> PreTrainedModel:
    """Makes a model that must not be changed: it is shared."""
    reference = build("lfm2_moe", 11, CONVS | MIXTURE | {"num_dense_layers": 1})
    for name, buffer in reference.named_buffers():
        if name.endswith("expert_bias"):
            torch.nn.init.uniform_(buffer, -0.5, 0.5)
    return reference


MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.125,
    "logits_scaling": 2.0,
}
MAMBAS = {"layer_types": ["mamba", "attention", "mamba", "mamba"]}


def with_rates(reference: PreTrainedModel) -> PreTrainedModel:
    """Whose heads forget, step and skip at rates of their own."""
    for name, parameter in reference.named_parameters():
        if name.rpartition(".")[2] in ("A_log", "dt_bias", "D") or name.endswith("conv1d.bias"):
            torch.nn.init.uniform_(parameter, -1.0, 1.0)
    return reference


@functools.cache
def granite4() -> PreTrainedModel:
    """Makes a model with a mixture, and what all rows go through beside it. Its attention is not
    rotated. It must not be changed: it is shared."""
    mixture = {
        "intermediate_size": 32,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
    }
    own = MAMBA | MAMBAS | MULTIPLIERS | mixture | {"mamba_n_groups": 1}
    return with_rates(build("granitemoehybrid", 12, own))


@functools.cache
def granite4_dense() -> PreTrainedModel:
    """Makes a model that must not be changed: it is shared."""
    dense = {
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 48,
        "position_embedding_type": "rope",
    }
    return with_rates(build("granitemoehybrid", 13, MAMBA | MAMBAS | MULTIPLIERS | dense))


@functools.cache
def bamba() -> PreTrainedModel:
    """Half of each head is rotated. Not to be changed: it is shared."""
    return with_rates(build("bamba", 14, MAMBA | {"attn_layer_indices": [2]}))


@functools.cache
def nemotron_h() -> PreTrainedModel:
    """A layer of each kind, and one with a state behind them. Not to be changed: it is shared."""
    own = {
        "layers_block_type": [
            "linear_attention",
            "mlp",
            "full_attention",
            "moe",
            "linear_attention",
        ],
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "chunk_size": 16,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "routed_scaling_factor": 1.5,
    }
    reference = with_rates(build("nemotron_h", 15, own))
    for name, buffer in reference.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.uniform_(buffer, -0.5, 0.5)
    return reference
