"""Tiny random models with multi-head latent attention."""

from __future__ import annotations

from typing import Any

from tests.inference.models.families.rows import Row

LATENT: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 3,
    "n_routed_experts": 12,
    "first_k_dense_replace": 1,
    "head_dim": 16,
    "eos_token_id": 2,
}
GROUPS = {"n_group": 4, "topk_group": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
V2_YARN = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}
V3_YARN = YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}
"""Unlike each other, so that cosines and sines have a part of the rule too."""
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}

V2 = LATENT | {
    "q_lora_rank": 96,
    "n_shared_experts": 2,
    "topk_method": "group_limited_greedy",
    "routed_scaling_factor": 4.0,
    "rope_parameters": V2_YARN,
    **GROUPS,
}
V2_LITE = LATENT | {
    "q_lora_rank": None,
    "n_shared_experts": 2,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "rope_parameters": V2_YARN,
}
V3 = LATENT | {
    "q_lora_rank": 96,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "rope_parameters": V3_YARN,
    "attention_bias": True,
    **GROUPS,
}
KIMI = V3 | {"n_group": 1, "topk_group": 1, "attention_bias": False}
GLM: dict[str, Any] = {key: V3[key] for key in V3 if key != "first_k_dense_replace"} | {
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.8,
    "rope_parameters": PLAIN,
    "attention_bias": False,
}
HALVES = KIMI | {"rope_interleave": False, "q_lora_rank": None}

ROWS: dict[str, Row] = {
    "V2": Row(model_type="deepseek_v2", config=V2),
    "V2-Lite": Row(model_type="deepseek_v2", config=V2_LITE),
    "V3": Row(model_type="deepseek_v3", config=V3),
    "Kimi K2": Row(model_type="deepseek_v3", config=KIMI),
    "rotated by halves": Row(model_type="deepseek_v3", config=HALVES),
    "GLM-4.7-Flash": Row(model_type="glm4_moe_lite", config=GLM, without=("head_dim",)),
}
