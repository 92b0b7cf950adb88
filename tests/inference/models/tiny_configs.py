"""A config of a few numbers for every family, as its config.json would declare it."""

from __future__ import annotations

from typing import Any

from inference.loading.hub_config import parse_config
from inference.models.config import ModelConfig
from inference.models.families.registry import FAMILIES
from tests.inference.models.families import tiny_hybrid as hybrids
from tests.inference.models.families import tiny_states as states
from tests.inference.models.families.latent_gguf import ROWS as LATENT_ROWS
from tests.inference.models.families.mixtures import CASES
from tests.inference.models.families.rows import ROWS, SIZES
from tests.inference.models.families.test_gpt_oss import ROW as GPT_OSS
from tests.inference.models.vision.tiny_qwen import IMAGE_MODELS

COMMON: dict[str, Any] = {"rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "norm_epsilon": 1e-5}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
MIXTURES = (
    *("qwen3_moe, one layer dense", "qwen2_moe", "mixtral", "olmoe", "glm4_moe", "dots1"),
    *("minimax_m2", "ernie4_5_moe", "llama4_text", "hunyuan_v1_moe"),
)


FACTS: dict[str, dict[str, Any]] = {
    row.model_type: COMMON | SIZES | row.config | {"model_type": row.model_type}
    for row in (*ROWS, *LATENT_ROWS.values(), GPT_OSS)
}
for case in (CASES[name] for name in MIXTURES):
    own = {"rope_parameters": ROPE} | case.config | {"model_type": case.model_type}
    FACTS[case.model_type] = COMMON | SIZES | own
FACTS["llama4_text"] |= {"attention_chunk_size": 20}
FACTS["kimi_k2"] = FACTS["deepseek_v3"] | {"model_type": "kimi_k2"}
FACTS["bamba"] = COMMON | SIZES | {"model_type": "bamba", "attn_layer_indices": [0, 1]}
MODELS = (hybrids.qwen3_next, states.biased_lfm2, states.lfm2_moe)
MODELS += tuple(tiny.make for name, tiny in IMAGE_MODELS.items() if name != "gemma3")
FACTS |= {facts["model_type"]: facts for facts in (make().config.to_dict() for make in MODELS)}
FACTS["lfm2"]["block_auto_adjust_ff_dim"] = False
VARIANTS: dict[str, dict[str, Any]] = {
    "llama, one head of keys": FACTS["llama"] | {"num_key_value_heads": 1},
    "llama, biased and tied": FACTS["llama"]
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "olmo2, one head of keys": FACTS["olmo2"] | {"num_key_value_heads": 1},
    "gemma3, with images": IMAGE_MODELS["gemma3"].make().config.to_dict(),
}
ALL_FACTS = FACTS | VARIANTS
UNSHARED = {"nemotron_h"}


def config_of(name: str, **changes: Any) -> ModelConfig:
    return parse_config(ALL_FACTS[name] | changes, {})


def missing_families() -> set[str]:
    """Those that no config above is of. Transformers' own modules are not shared, nor are layers
    that all families of ``UNSHARED`` have."""
    ours = {
        family.model_types[0]: family
        for family in FAMILIES
        if not family.uses_transformers and not UNSHARED & set(family.model_types)
    }
    return {name for name, family in ours.items() if not FACTS.keys() & set(family.model_types)}
