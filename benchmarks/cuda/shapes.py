"""The shapes of real models, for benchmarks whose weights are made on the spot, and what a step of
such a model must read or multiply at the least. Imports no torch."""

from __future__ import annotations

from inference.models.cache.kv_format import kv_bytes_per_token
from inference.models.config import ModelConfig

SHAPES = {
    "1.7B": ModelConfig(
        architecture="qwen3",
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        max_positions=8192,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm=True,
        tie_embeddings=True,
    ),
    "8B": ModelConfig(
        architecture="llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_positions=8192,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
    ),
}
TINY = ModelConfig(
    architecture="qwen3",
    vocab_size=20_480,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=512,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    qk_norm=True,
    tie_embeddings=True,
)
"""No real model's: for trying a benchmark out where there is no card."""


def weight_shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    """The shape of a weight by its Hugging Face name, with or without ``.weight``: (out_features,
    in_features), or (features,) of a norm."""
    kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if kind.endswith("norm"):
        return (config.head_dim if kind in ("q_norm", "k_norm") else config.hidden_size,)
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    table = config.vocab_size, hidden
    return {
        "q_proj": (heads, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, heads),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        "embed_tokens": table,
        "lm_head": table,
    }[kind]


def projection_weights(config: ModelConfig) -> int:
    """How many weights the layers' projections have: all but tables and norms."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    per_layer = heads * config.head_dim + 3 * config.intermediate_size
    return config.num_layers * per_layer * config.hidden_size


def table_weights(config: ModelConfig) -> int:
    """How many weights an embedding table has, and an output head."""
    return config.vocab_size * config.hidden_size


def decode_floor_bytes(
    config: ModelConfig,
    *,
    bytes_per_weight: float,
    bytes_per_head_weight: float,
    num_rows: int,
    context_tokens: int,
) -> float:
    """What a decode step must read: projections, the output head, and the rows' contexts. Norms
    and the embedding rows that are looked up are too little to count."""
    projections = projection_weights(config) * bytes_per_weight
    head = table_weights(config) * bytes_per_head_weight
    return projections + head + num_rows * context_tokens * kv_bytes_per_token(config, "bf16")


def prefill_floor_flops(config: ModelConfig, num_tokens: int) -> int:
    """What the projections of a prompt must multiply and add. Attention and the one row of logits
    are left out: time spent on them counts against the share."""
    return 2 * projection_weights(config) * num_tokens
