"""A config of a few numbers for every family, as its config.json would declare it."""

from __future__ import annotations

from typing import Any

from inference.loading.config.hub_config import parse_config
from inference.models.config import ModelConfig
from inference.models.families.registry import FAMILIES
from tests.inference.models.families.latent_gguf import ROWS as LATENT_ROWS
from tests.inference.models.families.mixtures import CASES
from tests.inference.models.families.rows import ROWS, SIZES
from tests.inference.models.vision.image_models import IMAGE_MODELS

COMMON: dict[str, Any] = {"rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "norm_epsilon": 1e-5}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
MIXTURE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED = MIXTURE | {"shared_expert_intermediate_size": 48}
DELTA = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
}
GPT_OSS = {
    "intermediate_size": 32,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 20,
    "rope_parameters": ROPE,
}
MIXTURES = (
    *("qwen3_moe, one layer dense", "qwen2_moe", "mixtral", "olmoe", "glm4_moe", "dots1"),
    *("minimax_m2", "ernie4_5_moe", "llama4_text", "hunyuan_v1_moe"),
)


FACTS: dict[str, dict[str, Any]] = {
    row.model_type: COMMON | SIZES | row.config | {"model_type": row.model_type} for row in ROWS
}
FACTS |= {
    name: COMMON | SIZES | {"rope_parameters": ROPE} | own | {"model_type": name}
    for name, own in {
        "gpt_oss": GPT_OSS,
        "qwen3_next": DELTA | SHARED,
        **{CASES[name].model_type: CASES[name].overrides for name in MIXTURES},
    }.items()
}
FACTS |= {
    row.model_type: COMMON | SIZES | row.config | {"model_type": row.model_type}
    for row in LATENT_ROWS.values()
}
FACTS["llama4_text"] |= {"attention_chunk_size": 20}
FACTS["kimi_k2"] = FACTS["deepseek_v3"] | {"model_type": "kimi_k2"}
CONVS = {
    "layer_types": ["conv", "full_attention"],
    "conv_bias": True,
    "block_auto_adjust_ff_dim": False,
    "norm_eps": 1e-5,
}
FACTS |= {
    "lfm2": COMMON | SIZES | CONVS | {"model_type": "lfm2"},
    "lfm2_moe": COMMON
    | SIZES
    | CONVS
    | MIXTURE
    | {"model_type": "lfm2_moe", "num_dense_layers": 1},
}
FACTS["bamba"] = COMMON | SIZES | {"model_type": "bamba", "attn_layer_indices": [0, 1]}
FACTS |= {
    name: tiny.make().config.to_dict()
    for name, tiny in IMAGE_MODELS.items()
    if name not in ("gemma3", "smolvlm")
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama, one head of keys": FACTS["llama"] | {"num_key_value_heads": 1},
    "llama, biased and tied": FACTS["llama"]
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "olmo2, one head of keys": FACTS["olmo2"] | {"num_key_value_heads": 1},
    "gemma3, with images": IMAGE_MODELS["gemma3"].make().config.to_dict(),
}
ALL_FACTS = FACTS | VARIANTS
UNSHARED = {"Nemotron-H"}


def config_of(name: str, **changes: Any) -> ModelConfig:
    return parse_config(ALL_FACTS[name] | changes, {})


def missing_families() -> set[str]:
    """Those that no config above is of. Transformers' own modules are not shared, nor are layers
    that all families of ``UNSHARED`` have."""
    ours = [
        family
        for family in FAMILIES
        if not family.uses_transformers and family.name not in UNSHARED
    ]
    return {family.name for family in ours if not FACTS.keys() & set(family.model_types)}
