"""Small mixtures of experts: rows of the parity matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.inference.models.families import parity
from tests.inference.models.families.rows import THETA, Row

EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "rope_parameters": THETA,
}
QWEN = EXPERTS | {"num_experts": 6}
QWEN3 = QWEN | {"norm_topk_prob": True}
ROUTED = EXPERTS | {"n_routed_experts": 6}
GLM = ROUTED | {"n_shared_experts": 2, "routed_scaling_factor": 2.5, "use_qk_norm": True}
GROUPS = ROUTED | {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
}
DOTS = {
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}
ERNIE = {
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}
LLAMA4 = {
    "num_hidden_layers": 4,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "intermediate_size": 48,
    "intermediate_size_mlp": 48,
    "interleave_moe_layer_step": 2,
}
NARROW = {"intermediate_size": 32}
MINIMAX = EXPERTS | NARROW | {"num_local_experts": 6, "rotary_dim": 8}
HUNYUAN = NARROW | {"num_experts": 6, "moe_topk": 2, "rope_parameters": THETA}
SIGMOID = {"expert_gating_func": 2}
UNSCALED = {"routed_scaling_factor": 1.5, "norm_topk_prob": False}

CASES = {
    "qwen3_moe": Row("qwen3_moe", QWEN3, "qwen3moe"),
    "qwen3_moe, one layer dense": Row("qwen3_moe", QWEN3 | {"decoder_sparse_step": 2}),
    "qwen2_moe": Row("qwen2_moe", QWEN | {"shared_expert_intermediate_size": 48}, "qwen2moe"),
    "mixtral": Row(
        "mixtral", EXPERTS | NARROW | {"num_local_experts": 5}, "llama", interleaves=True
    ),
    "glm4_moe": Row("glm4_moe", GLM | {"attention_bias": True}, "glm4moe", keys=SIGMOID),
    "glm4_moe, groups": Row("glm4_moe", GROUPS | UNSCALED, "glm4moe", keys=SIGMOID),
    "dots1": Row("dots1", GROUPS | DOTS, "dots1", keys=SIGMOID),
    "minimax_m2": Row("minimax_m2", MINIMAX, "minimax-m2", keys=SIGMOID),
    "ernie4_5_moe": Row("ernie4_5_moe", ERNIE, "ernie4_5-moe"),
    "llama4_text": Row("llama4_text", LLAMA4, "llama4", transposes=True),
    "hunyuan_v1_moe": Row("hunyuan_v1_moe", HUNYUAN, "hunyuan-moe"),
    "olmoe": Row("olmoe", QWEN | NARROW | {"num_key_value_heads": 4}, "olmoe"),
}

reference_of = parity.build_reference


def written(case: Row, directory: Path, path: Path) -> Path:
    """The model saved in ``directory`` as a GGUF file."""
    reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory)
    return parity.save_gguf(case, reference, path)
