"""Small mixtures of experts: rows of the parity matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.inference.models.families import parity
from tests.inference.models.families.rows import THETA, GGUFRow, Row

EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "rope_parameters": THETA,
}
QWEN = EXPERTS | {"num_experts": 6}
ROUTED = EXPERTS | {"n_routed_experts": 6}
GROUPS = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}
SIGMOID = {"expert_gating_func": 2}


def _row(model_type: str, architecture: str, config: dict[str, Any], **gguf: Any) -> Row:
    return Row(
        model_type=model_type, config=config, gguf=GGUFRow(architecture=architecture, **gguf)
    )


CASES = {
    "qwen3_moe": _row("qwen3_moe", "qwen3moe", QWEN | {"norm_topk_prob": True}),
    "qwen3_moe, one layer dense": Row(
        model_type="qwen3_moe", config=QWEN | {"norm_topk_prob": True, "decoder_sparse_step": 2}
    ),
    "qwen2_moe": _row("qwen2_moe", "qwen2moe", QWEN | {"shared_expert_intermediate_size": 48}),
    "mixtral": _row(
        "mixtral",
        "llama",
        EXPERTS | {"num_local_experts": 5, "intermediate_size": 32},
        interleaves=True,
    ),
    "glm4_moe": _row(
        "glm4_moe",
        "glm4moe",
        ROUTED
        | {
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
        keys=SIGMOID,
    ),
    "glm4_moe, groups": _row(
        "glm4_moe",
        "glm4moe",
        ROUTED | GROUPS | {"routed_scaling_factor": 1.5, "norm_topk_prob": False},
        keys=SIGMOID,
    ),
    "dots1": _row(
        "dots1",
        "dots1",
        ROUTED
        | GROUPS
        | {
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
        },
        keys=SIGMOID,
    ),
    "minimax_m2": _row(
        "minimax_m2",
        "minimax-m2",
        EXPERTS | {"num_local_experts": 6, "intermediate_size": 32, "rotary_dim": 8},
        keys=SIGMOID,
    ),
    "ernie4_5_moe": _row(
        "ernie4_5_moe",
        "ernie4_5-moe",
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
    ),
    "llama4_text": _row(
        "llama4_text",
        "llama4",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 48,
            "intermediate_size_mlp": 48,
            "interleave_moe_layer_step": 2,
        },
        transposes=True,
    ),
    "hunyuan_v1_moe": _row(
        "hunyuan_v1_moe",
        "hunyuan-moe",
        {"num_experts": 6, "moe_topk": 2, "intermediate_size": 32, "rope_parameters": THETA},
    ),
    "olmoe": _row("olmoe", "olmoe", QWEN | {"num_key_value_heads": 4, "intermediate_size": 32}),
}

reference_of = parity.build_reference


def written(case: Row, directory: Path, path: Path) -> Path:
    """The model saved in ``directory`` as a GGUF file."""
    reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory)
    return parity.save_gguf(case, reference, path)
