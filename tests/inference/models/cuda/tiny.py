"""A llama of a few thousand random weights, on any device."""

from __future__ import annotations

import torch

from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from tests.inference.models.dense_weights import DenseWeights

CONFIG = ModelConfig(
    architecture="qwen3",
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=128,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    qk_norm=True,
    tie_embeddings=True,
)


def tiny_model(
    device: torch.device, kv_format: KVFormat = "fp32", config: ModelConfig = CONFIG
) -> DecoderModel:
    return DecoderModel(config, _weights(device, config), config.max_positions, kv_format)


def _weights(device: torch.device, config: ModelConfig) -> DenseWeights:
    generator = torch.Generator().manual_seed(3)
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv = config.num_heads * dim, config.num_kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (config.vocab_size, hidden),
        "model.norm": (hidden,),
    }
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        shapes |= {f"{layer}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
        shapes |= {f"{layer}.self_attn.{name}_norm": (dim,) for name in "qk"}
        shapes |= {
            f"{layer}.self_attn.q_proj": (heads, hidden),
            f"{layer}.self_attn.k_proj": (kv, hidden),
            f"{layer}.self_attn.v_proj": (kv, hidden),
            f"{layer}.self_attn.o_proj": (hidden, heads),
            f"{layer}.self_attn.sinks": (config.num_heads,),
            f"{layer}.mlp.gate_proj": (inner, hidden),
            f"{layer}.mlp.up_proj": (inner, hidden),
            f"{layer}.mlp.down_proj": (hidden, inner),
        }
    tensors = {
        (name if name.endswith("sinks") else f"{name}.weight"): torch.randn(
            shape, generator=generator
        )
        * 0.3
        for name, shape in shapes.items()
    }
    return DenseWeights(tensors, torch.float32, device)
