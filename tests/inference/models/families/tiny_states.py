"""Hybrids of a few numbers whose layers keep states of other kinds, as transformers builds them."""

from __future__ import annotations

import functools
from copy import deepcopy
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.inference.models.families.rows import MULTIPLIERS, THETA
from tests.inference.models.families.tiny_hybrid import (
    CONTEXT_TOKENS,
    VOCAB_SIZE,
    maker,
    randomised,
)

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
    "rope_parameters": THETA,
}
CONVS = {"layer_types": ["conv", "full_attention", "conv", "conv"]}
MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
GRANITE4 = (
    MAMBA
    | MULTIPLIERS
    | {
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
        "shared_intermediate_size": 48,
    }
)
NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
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
CONFIGS: dict[str, tuple[str, int, dict[str, Any]]] = {
    # Its MLP is narrower than declared.
    "lfm2": ("lfm2", 10, CONVS | {"block_multiple_of": 16}),
    # Which llama.cpp does not know.
    "biased_lfm2": ("lfm2", 16, CONVS | {"conv_bias": True}),
    "lfm2_moe": ("lfm2_moe", 11, CONVS | MIXTURE | {"num_dense_layers": 1}),
    # A mixture, and what all rows go through beside it. Its attention is not rotated.
    "granite4": (
        "granitemoehybrid",
        12,
        GRANITE4
        | {
            "intermediate_size": 32,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "mamba_n_groups": 1,
        },
    ),
    "granite4_dense": (
        "granitemoehybrid",
        13,
        GRANITE4
        | {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "position_embedding_type": "rope",
        },
    ),
    # Half of each head is rotated.
    "bamba": ("bamba", 14, MAMBA | {"attn_layer_indices": [2]}),
    # A layer of each kind, and one with a state behind them.
    "nemotron_h": ("nemotron_h", 15, NEMOTRON_H),
}
"""Model types, seeds, and what differs from ``COMMON``."""
RATES = ("A_log", "dt_bias", "D", "conv1d.bias")
"""Heads forget, step and skip at rates of their own."""


@functools.cache
def reference_of(name: str) -> PreTrainedModel:
    """Makes a model that must not be changed: it is shared."""
    model_type, seed, own = CONFIGS[name]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **deepcopy(COMMON | own))
    reference = randomised(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    for own_name, weight in (*reference.named_parameters(), *reference.named_buffers()):
        if own_name.endswith(RATES):
            torch.nn.init.uniform_(weight, -1.0, 1.0)
        elif own_name.endswith("bias"):
            torch.nn.init.uniform_(weight, -0.5, 0.5)
    return reference


lfm2, biased_lfm2, lfm2_moe, granite4, granite4_dense, bamba, nemotron_h = (
    maker(reference_of, name) for name in CONFIGS
)
