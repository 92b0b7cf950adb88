"""One layer in memory at a time computes what the whole model does."""

from __future__ import annotations

from dataclasses import replace

import torch

from inference.models.config import ModelConfig
from inference.models.layer_by_layer import HEAD_ROWS, largest_layer_bytes, prompt_logits
from inference.models.registry import build_model
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.models.dense_weights import DenseWeights

NUM_TOKENS = 40
LLAMA = ModelConfig(
    architecture="llama",
    vocab_size=HEAD_ROWS + 100,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
CONFIGS = {
    "llama": LLAMA,
    "tied": replace(LLAMA, tie_embeddings=True),
    "mistral": replace(LLAMA, architecture="mistral", sliding_window=8),
    "qwen2": replace(LLAMA, architecture="qwen2", qkv_bias=True),
    "qwen3": replace(LLAMA, architecture="qwen3", qk_norm=True),
}


def random_weights(config: ModelConfig) -> DenseWeights:
    generator = torch.Generator().manual_seed(7)
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "lm_head.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (heads, hidden),
            f"{layer}.self_attn.k_proj.weight": (kv, hidden),
            f"{layer}.self_attn.v_proj.weight": (kv, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, heads),
            f"{layer}.mlp.gate_proj.weight": (config.intermediate_size, hidden),
            f"{layer}.mlp.up_proj.weight": (config.intermediate_size, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, config.intermediate_size),
        }
        if config.qkv_bias:
            shapes |= {f"{layer}.self_attn.q_proj.bias": (heads,)}
            shapes |= {f"{layer}.self_attn.{name}_proj.bias": (kv,) for name in "kv"}
        if config.qk_norm:
            shapes |= {f"{layer}.self_attn.{n}_norm.weight": (config.head_dim,) for n in "qk"}
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()
    }
    return DenseWeights(tensors, torch.float32, torch.device("cpu"))


def prompt(block_tokens: int) -> StepInput:
    ids = range(0, NUM_TOKENS * 11, 11)
    return StepInput.of_sequence(ids, block_tokens, logit_rows=slice(3, None))


@each_case("name", CONFIGS)
def test_it_computes_what_the_whole_model_does(name: str) -> None:
    config, weights = CONFIGS[name], random_weights(CONFIGS[name])
    whole = build_model(config, weights, NUM_TOKENS)
    kv = whole.new_kv(8, 8)
    with torch.inference_mode():
        expected = whole.forward(prompt(8), kv)
    done: list[int] = []
    logits = prompt_logits(config, weights, prompt(1), done.append)
    assert torch.allclose(logits, expected, atol=1e-4)
    assert done == [1, 2, 3]


def test_the_largest_part_is_a_layer_or_a_part_of_the_head() -> None:
    layer_weights = 32 * (16 * (2 * 4 + 2 * 2) + 3 * 48)
    assert largest_layer_bytes(replace(LLAMA, vocab_size=8), 4) == 4 * layer_weights
    assert largest_layer_bytes(LLAMA, 2) == 2 * 32 * HEAD_ROWS
