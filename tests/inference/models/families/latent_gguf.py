"""Tiny random models with multi-head latent attention, and their weights as llama.cpp's converter
writes them, now and before it cut ``kv_b_proj`` in two: names by the ``gguf`` package's own
table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import tiny_gguf
from tests.inference.models.families.rows import THETA, YARN, Row

ARCH = gguf.MODEL_ARCH.DEEPSEEK2


def save_latent(reference: PreTrainedModel, path: Path, *, is_split: bool) -> Path:
    config = reference.config
    query_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
    kept = config.kv_lora_rank + config.qk_rope_head_dim
    is_v2, rope = config.model_type == "deepseek_v2", config.rope_parameters
    gatings = gguf.ExpertGatingFuncType
    own = {
        "attention.head_count_kv": 1 if is_split else config.num_attention_heads,
        "attention.key_length": kept if is_split else query_dim,
        "attention.value_length": config.kv_lora_rank if is_split else config.v_head_dim,
        "attention.key_length_mla": query_dim if is_split else None,
        "attention.value_length_mla": config.v_head_dim if is_split else None,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.q_lora_rank": config.q_lora_rank,
        "rope.dimension_count": config.qk_rope_head_dim,
        "expert_gating_func": (gatings.SOFTMAX if is_v2 else gatings.SIGMOID).value,
        "expert_weights_norm": not is_v2,
    }
    if rope["rope_type"] == "yarn":
        own["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    if config.n_group == 1:
        own |= {"expert_group_count": None, "expert_group_used_count": None}
    tensors = _tensors(reference, is_split=is_split)
    return tiny_gguf.write(path, ARCH, config, tensors, own)


def _tensors(reference: PreTrainedModel, *, is_split: bool) -> Iterator[tuple[str, torch.Tensor]]:
    config = reference.config
    for name, tensor in reference.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            yield name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor
        elif is_split and name.endswith("kv_b_proj.weight"):
            of_heads = tensor.view(config.num_attention_heads, -1, config.kv_lora_rank)
            keys, values = of_heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
            yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), values
        else:
            yield from tiny_gguf.unstacked(name, tensor)


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
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}
V2_YARN = YARN | BETAS | {"mscale": 0.707, "mscale_all_dim": 0.707}
V3_YARN = YARN | BETAS | {"mscale": 1.0, "mscale_all_dim": 0.8}
"""Unlike each other, so that cosines and sines have a part of the rule too."""

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
    "rope_parameters": THETA,
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
