"""One layer in memory at a time computes what the whole model does."""

from __future__ import annotations

from dataclasses import replace

import torch

from inference.models.layer_by_layer import HEAD_ROWS, largest_layer_bytes, prompt_logits
from inference.models.registry import build_model
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.models.dense_weights import TINY, random_weights

NUM_TOKENS = 40
LLAMA = replace(
    TINY,
    vocab_size=HEAD_ROWS + 100,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    max_positions=64,
)
CONFIGS = {
    "llama": LLAMA,
    "tied": replace(LLAMA, tie_embeddings=True),
    "mistral": replace(LLAMA, architecture="mistral", sliding_window=8),
    "qwen2": replace(LLAMA, architecture="qwen2", qkv_bias=True),
    "qwen3": replace(LLAMA, architecture="qwen3", qk_norm=True),
}


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
