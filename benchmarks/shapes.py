"""Shapes of real models: the weights' values do not affect speed."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Widths that a product reads are multiples of 256."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_tokens: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseShape(Shape):
    """A qwen3."""

    inner_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureShape(Shape):
    """A qwen3moe."""

    num_experts: int
    experts_per_token: int
    expert_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridShape(Shape):
    """A qwen35: every fourth layer is attention, others are Gated DeltaNet."""

    inner_size: int
    num_delta_heads: int
    """As many heads of keys as of values."""
    delta_head_dim: int
    conv_kernel: int = 4


QWEN3_30B_A3B = MixtureShape(
    vocab_size=151_936,
    hidden_size=2048,
    num_layers=48,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    num_experts=128,
    experts_per_token=8,
    expert_size=768,
)
QWEN3_5_0_8B = HybridShape(
    vocab_size=248_320,
    hidden_size=1024,
    inner_size=3584,
    num_layers=24,
    num_heads=8,
    num_kv_heads=2,
    head_dim=256,
    num_delta_heads=16,
    delta_head_dim=128,
)
SHAPES: dict[str, Shape] = {
    "qwen3-1.7b": DenseShape(
        vocab_size=151_936,
        hidden_size=2048,
        inner_size=6144,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
    ),
    "qwen3-8b": DenseShape(
        vocab_size=151_936,
        hidden_size=4096,
        inner_size=12_288,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
    ),
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "qwen3-30b-a3b-16-layers": replace(QWEN3_30B_A3B, num_layers=16),
    "qwen3.5-0.8b": QWEN3_5_0_8B,
    # A Qwen3-30B-A3B at half its width, half its experts and a sixth of its layers: 1.3 billion
    # weights, of which a token meets a sixth.
    "qwen3moe": MixtureShape(
        vocab_size=32_768,
        hidden_size=1024,
        num_layers=8,
        num_heads=16,
        num_kv_heads=4,
        head_dim=64,
        num_experts=64,
        experts_per_token=8,
        expert_size=768,
    ),
    # A Qwen3.5-0.8B at half its layers and an eighth of its vocabulary: 300 million weights.
    "qwen35": replace(QWEN3_5_0_8B, vocab_size=32_768, num_layers=12),
    # No real models': for trials.
    "tiny-dense": DenseShape(
        vocab_size=20_480,
        hidden_size=256,
        inner_size=512,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
    ),
    "tiny-mixture": MixtureShape(
        vocab_size=2048,
        hidden_size=256,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        num_experts=8,
        experts_per_token=2,
        expert_size=256,
    ),
    "tiny-hybrid": HybridShape(
        vocab_size=2048,
        hidden_size=256,
        inner_size=256,
        num_layers=4,
        num_heads=2,
        num_kv_heads=1,
        head_dim=256,
        num_delta_heads=2,
        delta_head_dim=128,
    ),
}
