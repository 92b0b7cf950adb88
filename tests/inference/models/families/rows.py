"""The parity matrix: for each model type a tiny random model, and how llama.cpp would write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VOCAB_SIZE = 96
CONTEXT_TOKENS = 128
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


@dataclass(frozen=True, slots=True)
class Row:
    model_type: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    """What differs from ``SIZES``, and what a whole model of the family declares."""
    architecture: str = ""
    """GGUF's, where llama.cpp has one."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Metadata of its own, by name under the architecture."""
    interleaves: bool = False
    """Whether the converter writes rotary rows in pairs."""
    norm_offset: float = 0.0
    """What the converter adds to the weights of norms."""
    transposes: bool = False
    """Whether transformers' stacks of experts have their inputs first."""
    without: tuple[str, ...] = ()
    """The names in ``SIZES`` that the family's config does not take."""
    louder: dict[str, float] = field(default_factory=dict)
    """Factors by which parameters are larger than transformers initialises them, by a part of their
    name: for models whose answers would not depend on their state otherwise."""

    @property
    def sizes(self) -> dict[str, Any]:
        return {k: v for k, v in (SIZES | self.config).items() if k not in self.without}


THETA = {"rope_theta": 10_000.0, "rope_type": "default"}
HALF = THETA | {"partial_rotary_factor": 0.5}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
OLMO3_ROPE = {"full_attention": YARN, "sliding_attention": THETA}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1_000_000.0},
    "sliding_attention": THETA,
}
MINISTRAL3_ROPE = YARN | {
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
"""Queries have grown twice and thrice at the context's end."""
STRETCHED = {"rope_type": "dynamic", "rope_theta": 1_000.0, "alpha": 50.0, "factor": 1.0}
"""A base that 50.0 stretches, whatever the length: of heads of 16, to 87,434."""
FOUR_LAYERS = {"num_hidden_layers": 4}
GEMMA2 = {
    "query_pre_attn_scalar": 32,
    "sliding_window": 20,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}

MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.125,
    "logits_scaling": 2.0,
}
GRANITE4 = {
    "layer_types": ["full_attention"] * 2,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 96,
    "position_embedding_type": "rope",
}
GLM = {"rope_parameters": HALF, "attention_bias": True, "eos_token_id": 2}
TIED = {"tie_word_embeddings": True}
WINDOW = {"sliding_window": 20}
MINISTRAL3_KEYS = {"attention.temperature_scale": 0.5, "rope.scaling.yarn_log_multiplier": 1.0}


ROWS = (
    Row("llama", {}, "llama", interleaves=True),
    Row("mistral", WINDOW),
    Row(
        *("ministral3", {"rope_parameters": MINISTRAL3_ROPE}, "mistral3"),
        interleaves=True,
        keys=MINISTRAL3_KEYS,
    ),
    Row("qwen2", {}, "qwen2"),
    Row("qwen3", {}, "qwen3"),
    Row("gemma", TIED, "gemma", norm_offset=1.0),
    Row(
        *("gemma2", GEMMA2 | FOUR_LAYERS | TIED | {"query_pre_attn_scalar": 16}, "gemma2"),
        norm_offset=1.0,
    ),
    Row(
        "gemma3_text",
        WINDOW
        | TIED
        | {"num_hidden_layers": 6, "query_pre_attn_scalar": 16, "rope_parameters": GEMMA3_ROPE},
        "gemma3",
        norm_offset=1.0,
    ),
    Row("phi3", WINDOW | {"rope_parameters": HALF}, "phi3"),
    Row("glm", GLM),
    Row("glm4", GLM, "glm4"),
    Row("granite", MULTIPLIERS, "granite", interleaves=True),
    Row("granitemoehybrid", GRANITE4 | MULTIPLIERS),
    Row("smollm3", FOUR_LAYERS | {"rope_parameters": THETA}, "smollm3", interleaves=True),
    Row("olmo2", {}, "olmo2"),
    Row("olmo3", FOUR_LAYERS | WINDOW | {"rope_parameters": OLMO3_ROPE}, "olmo2"),
    Row("exaone4", FOUR_LAYERS | WINDOW | {"rope_parameters": THETA}, "exaone4"),
    Row("seed_oss", {}, "seed_oss"),
    Row("ernie4_5", TIED, "ernie4_5"),
    Row("cohere", TIED | {"logit_scale": 0.5}, "command-r"),
    Row("cohere2", FOUR_LAYERS | WINDOW | TIED, "cohere2"),
    Row(
        "hunyuan_v1_dense",
        {"rope_parameters": STRETCHED, "eos_token_id": 2},
        "hunyuan-dense",
        keys={"rope.freq_base": 1_000.0 * 50.0 ** (16 / 14)},
    ),
    Row("starcoder2", TIED | WINDOW, "starcoder2"),
)
LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 16,
    "floor_scale": 24,
    "attn_scale": 0.5,
}
"""Prompts and answers cross chunks, layers rotate nothing, and queries grow."""
