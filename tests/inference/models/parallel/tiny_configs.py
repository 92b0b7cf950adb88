"""A config of a few numbers for every family, as its config.json would declare it."""

from __future__ import annotations

from typing import Any

from inference.loading.config.hub_config import parse_config
from inference.models.config import ModelConfig
from inference.models.families.registry import FAMILIES
from tests.inference.models.families.latent_gguf import ROWS as LATENT_ROWS
from tests.inference.models.families.mixtures import CASES
from tests.inference.models.families.rows import ROWS, SIZES

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
VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 2,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "out_hidden_size": 64,
    "num_position_embeddings": 25,
    "hidden_act": "gelu_pytorch_tanh",
    "deepstack_visual_indexes": [0, 1],
}
IMAGES = {
    "image_token_id": 90,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
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


def _nested(model_type: str, own: dict[str, Any]) -> dict[str, Any]:
    mrope = {"rope_parameters": ROPE | {"mrope_section": [4, 2, 2], "mrope_interleaved": True}}
    text = COMMON | SIZES | own | mrope
    return IMAGES | {
        "model_type": model_type,
        "text_config": text,
        "vision_config": VISION,
        "tie_word_embeddings": False,
    }


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
WINDOWED = {key: VISION[key] for key in VISION if key != "deepstack_visual_indexes"} | {
    "hidden_act": "silu",
    "window_size": 8,
    "fullatt_block_indexes": [1],
}
FACTS |= {
    "qwen2_5_vl": _nested("qwen2_5_vl", {}) | {"vision_config": WINDOWED},
    "qwen3_vl": _nested("qwen3_vl", {}),
    "qwen3_vl_moe": _nested("qwen3_vl_moe", MIXTURE),
    "qwen3_5": _nested("qwen3_5", DELTA),
    "qwen3_5_moe": _nested("qwen3_5_moe", DELTA | SHARED),
    "mistral3": {"model_type": "mistral3", "text_config": FACTS["mistral"]},
}
SIGLIP = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 2,
}
PIXTRAL = {"model_type": "pixtral", **SIGLIP, "head_dim": 8, "hidden_act": "gelu"}
FACTS |= {
    "idefics3": {
        "model_type": "idefics3",
        "text_config": FACTS["llama"],
        "vision_config": SIGLIP,
        "scale_factor": 2,
        "image_token_id": 90,
    },
    "llava": {
        "model_type": "llava",
        "text_config": FACTS["mistral"],
        "vision_config": PIXTRAL,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "image_token_index": 90,
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama, one head of keys": FACTS["llama"] | {"num_key_value_heads": 1},
    "llama, biased and tied": FACTS["llama"]
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "olmo2, one head of keys": FACTS["olmo2"] | {"num_key_value_heads": 1},
    "gemma3, with images": {
        "model_type": "gemma3",
        "text_config": FACTS["gemma3_text"],
        "vision_config": SIGLIP,
        "mm_tokens_per_image": 4,
        "image_token_index": 90,
    },
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
