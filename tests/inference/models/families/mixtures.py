"""Small mixtures of experts: transformers' models, and their GGUF files."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gguf.constants import GGMLQuantizationType
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.experts import by_expert, cut_transposed
from inference.models.families.registry import check_architecture
from tests.inference.loading.conftest import SIZES, save_gguf
from tests.inference.models.families import tiny_gguf

OWN: dict[str, Any] = {
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
QWEN: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
GROUPS = {"n_group": 4, "topk_group": 2}
SIGMOID = {"expert_gating_func": 2}
NUM_LAYERS = SIZES["num_hidden_layers"]


@dataclass(frozen=True, slots=True)
class Case:
    model_type: str
    overrides: dict[str, Any]
    gguf: str
    """How GGUF calls it."""
    keys: dict[str, Any] = field(default_factory=dict)
    """GGUF's, of its own."""


CASES = {
    "qwen3_moe": Case("qwen3_moe", QWEN | {"norm_topk_prob": True}, "qwen3moe"),
    "qwen3_moe, one layer dense": Case(
        "qwen3_moe", QWEN | {"norm_topk_prob": True, "decoder_sparse_step": 2}, "qwen3moe"
    ),
    "qwen2_moe": Case(
        "qwen2_moe",
        QWEN | {"shared_expert_intermediate_size": 48},
        "qwen2moe",
    ),
    "mixtral": Case(
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 32},
        "llama",
    ),
    "glm4_moe": Case(
        "glm4_moe",
        {
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
        "glm4moe",
        SIGMOID,
    ),
    "glm4_moe, groups": Case(
        "glm4_moe",
        GROUPS
        | {
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": False,
        },
        "glm4moe",
        SIGMOID,
    ),
    "dots1": Case(
        "dots1",
        GROUPS
        | {
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
        },
        "dots1",
        SIGMOID,
    ),
    "minimax_m2": Case(
        "minimax_m2",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "rotary_dim": 8,
        },
        "minimax-m2",
        SIGMOID,
    ),
    "ernie4_5_moe": Case(
        "ernie4_5_moe",
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
        "ernie4_5-moe",
    ),
    "llama4_text": Case(
        "llama4_text",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 48,
            "intermediate_size_mlp": 48,
            "interleave_moe_layer_step": 2,
        },
        "llama4",
    ),
    "hunyuan_v1_moe": Case(
        "hunyuan_v1_moe",
        {"num_experts": 6, "moe_topk": 2, "intermediate_size": 32},
        "hunyuan-moe",
    ),
    "olmoe": Case("olmoe", QWEN | {"num_key_value_heads": 4, "intermediate_size": 32}, "olmoe"),
}


def reference_of(case: Case) -> PreTrainedModel:
    torch.manual_seed(7)
    # Copied: some configs write into their rotary parameters.
    config = AutoConfig.for_model(case.model_type, **deepcopy(SIZES | OWN | case.overrides))
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in reference.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.3)
    for name, buffer in reference.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.uniform_(buffer, -0.3, 0.3)
    return reference


def stacked(directory: Path) -> dict[str, torch.Tensor]:
    """Returns the weights of a saved model, with experts as a GGUF file has them."""
    hidden = SIZES["hidden_size"]
    saved = SafetensorsFiles([directory / "model.safetensors"])
    files = by_expert(cut_transposed(saved, hidden))
    model_type = json.loads((directory / "config.json").read_text())["model_type"]
    hub_name = check_architecture(model_type).hub_name
    weights: dict[str, Any] = {}
    for source in files.names:
        name = hub_name(source).replace("shared_experts", "shared_expert")
        name = name.replace("n_bias", "n.bias")
        name = name.replace("feed_forward", "mlp").replace("mlp.router", "mlp.gate")
        name = name.replace("gate.wg", "gate").replace("shared_mlp", "shared_expert")
        name = name.replace("query_layernorm", "q_norm").replace("key_layernorm", "k_norm")
        name = re.sub(r"mlp\.(gate\.|moe_statics\.)*e_score", "mlp.gate.e_score", name)
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)(\..*)", name):
            own = weights.setdefault(match[1] + match[3], {})
            own[int(match[2])] = files.dense(source)
        else:
            weights[name] = files.dense(source)
            if "e_score" in name:
                weights[name] = weights[name].flatten()
    return {
        name: torch.stack([weight[i] for i in range(len(weight))])
        if isinstance(weight, dict)
        else weight
        for name, weight in weights.items()
    }


TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": {chr(65 + i): i for i in range(26)}, "merges": []},
}


def written(
    case: Case,
    directory: Path,
    path: Path,
    types: dict[str, GGMLQuantizationType] | None = None,
    num_predicting: int = 0,
) -> Path:
    """``num_predicting``: layers behind the model's own that predict further tokens."""
    config = AutoConfig.for_model(case.model_type, **deepcopy(SIZES | OWN | case.overrides))
    own = {
        key: value
        for key, value in tiny_gguf.keys_of(config).items()
        if key.startswith(("expert_", "rope.dimension_count"))
    }
    own |= case.keys
    metadata = {f"{case.gguf}.{key}": value for key, value in own.items()}
    sizes = {name: case.overrides.get(name, size) for name, size in SIZES.items()}
    if num_predicting:
        sizes["num_hidden_layers"] += num_predicting
        metadata[f"{case.gguf}.nextn_predict_layers"] = num_predicting
    return save_gguf(path, stacked(directory), case.gguf, types, metadata, sizes)
