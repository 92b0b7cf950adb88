"""The shapes of real models, for benchmarks with random weights, and lower bounds of a step's reads
and arithmetic. Imports no torch."""

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
"""No real model's: for trials without a card."""


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
    """The number of weights in the layers' projections: all but tables and norms."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    per_layer = heads * config.head_dim + 3 * config.intermediate_size
    return config.num_layers * per_layer * config.hidden_size


def table_weights(config: ModelConfig) -> int:
    """The number of weights in an embedding table and an output head."""
    return config.vocab_size * config.hidden_size


def decode_floor_bytes(
    config: ModelConfig,
    *,
    bytes_per_weight: float,
    bytes_per_head_weight: float,
    num_rows: int,
    context_tokens: int,
) -> float:
    """The least bytes that a decode step reads: projections, the output head, and the rows'
    contexts. Norms and embedding rows are negligible."""
    projections = projection_weights(config) * bytes_per_weight
    head = table_weights(config) * bytes_per_head_weight
    return projections + head + num_rows * context_tokens * kv_bytes_per_token(config, "bf16")


def prefill_floor_flops(config: ModelConfig, num_tokens: int) -> int:
    """The least arithmetic of a prompt's projections. Attention and the one row of logits are left
    out: time spent on them counts against the share."""
    return 2 * projection_weights(config) * num_tokens
