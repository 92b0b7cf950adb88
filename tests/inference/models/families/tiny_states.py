"""Hybrids of a few numbers whose layers keep states of other kinds, as transformers builds them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers import PreTrainedModel

from tests.inference.models.families.rows import MULTIPLIERS, SIZES, THETA
from tests.inference.models.families.tiny_hybrid import (
    CONTEXT_TOKENS,
    VOCAB_SIZE,
    built,
    maker,
)

COMMON: dict[str, Any] = {
    name: SIZES[name] for name in SIZES if name[:4] not in ("head", "tie_")
} | {
    "vocab_size": VOCAB_SIZE,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.3,
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
GRANITE4 = MAMBA | MULTIPLIERS | {"shared_intermediate_size": 48}
GRANITE4["layer_types"] = ["mamba", "attention", "mamba", "mamba"]
ROUTED = {"intermediate_size": 32, "num_local_experts": 6, "num_experts_per_tok": 2}
DENSE = {"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"}
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
    "granite4": ("granitemoehybrid", 12, GRANITE4 | ROUTED | {"mamba_n_groups": 1}),
    "granite4_dense": ("granitemoehybrid", 13, GRANITE4 | DENSE),
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
    reference = built(model_type, seed, COMMON | own)
    for own_name, weight in (*reference.named_parameters(), *reference.named_buffers()):
        if own_name.endswith(RATES):
            torch.nn.init.uniform_(weight, -1.0, 1.0)
        elif own_name.endswith("bias"):
            torch.nn.init.uniform_(weight, -0.5, 0.5)
    return reference


lfm2, biased_lfm2, lfm2_moe, granite4, granite4_dense, bamba, nemotron_h = (
    maker(reference_of, name) for name in CONFIGS
)
