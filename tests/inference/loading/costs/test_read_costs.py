"""What layers cost, from configs alone: all that a load counts, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from inference.loading.config.hub_config import parse_config
from inference.loading.costs.model_costs import ModelCosts
from inference.loading.costs.read_costs import config_tensors, model_costs
from inference.loading.formats import FORMATS
from inference.models.cache.kv_format import kv_bytes_per_token
from inference.protocol.load_errors import BadSourceError
from tests.cases import each_case

LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
MIXTURE = LLAMA | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "head_dim": 16,
    "decoder_sparse_step": 1,
}
ATTENTION = 64 * (64 + 32 + 32 + 64)
MLP = 3 * 64 * 128
NORMS = 2 * 64
TABLE = 1000 * 64


def costs_of(hub: dict[str, Any], quantization: str = "auto", **options: Any) -> ModelCosts:
    config = parse_config(hub, {})
    return model_costs(config, config_tensors(config, hub, quantization), **options)


def test_every_weight_is_counted_once() -> None:
    costs = costs_of(LLAMA)
    assert [layer.num_weights for layer in costs.layers] == [ATTENTION + MLP + NORMS] * 3
    assert costs.layers[0].weight_bytes.cuda == 2 * (ATTENTION + MLP + NORMS)
    assert costs.layers[0].weight_bytes.cpu == 4 * (ATTENTION + MLP + NORMS)
    assert costs.outer_bytes.cuda == 2 * (2 * TABLE + 64)
    assert (costs.head_bytes.cuda, costs.num_head_weights) == (2 * TABLE, TABLE)
    tied = costs_of(LLAMA | {"tie_word_embeddings": True})
    assert tied.outer_bytes.cuda == 2 * (TABLE + 64)
    assert tied.head_bytes == costs.head_bytes


def test_keys_and_values_of_all_layers_are_those_of_the_model() -> None:
    config = parse_config(LLAMA, {})
    costs = costs_of(LLAMA, kv_dtype="int8")
    held = sum(layer.kv_token_bytes.cuda for layer in costs.layers)
    assert held == kv_bytes_per_token(config, "int8")
    assert costs.context_tokens == 4096
    assert costs_of(LLAMA, max_context_tokens=512).context_tokens == 512


def test_routed_experts_are_apart_from_the_rest_of_a_layer() -> None:
    costs = costs_of(MIXTURE)
    experts = 8 * 3 * 64 * 32
    for layer in costs.layers:
        assert layer.num_expert_weights == experts
        assert layer.expert_bytes.cuda == 2 * experts
    assert costs.active_share == 0.25
    assert all(layer.num_expert_weights == 0 for layer in costs_of(LLAMA).layers)


@each_case("quantization", ["q4", "q8"])
def test_a_load_that_quantises_takes_what_its_formats_take(quantization: str) -> None:
    costs = costs_of(LLAMA, quantization)
    least = FORMATS[quantization].card / 8 * (ATTENTION + MLP)
    # torch's kernel for 8 bits takes a little more than the card's own.
    assert least <= costs.layers[0].weight_bytes.cuda - 2 * NORMS <= 1.07 * least
    packed = {"q4": 0.625, "q8": 1.0625}[quantization]
    assert costs.layers[0].weight_bytes.cpu == packed * (ATTENTION + MLP) + 4 * NORMS


def test_quantised_files_declare_it_in_their_config() -> None:
    awq = LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    packed = FORMATS["INT4"].native / 8 * (ATTENTION + MLP) + 4 * NORMS
    assert costs_of(awq).layers[0].weight_bytes.cpu == packed


def test_a_module_of_transformers_has_no_layer_costs() -> None:
    sizes = {"vocab_size": 100, "n_embd": 64, "n_head": 4, "n_layer": 2}
    with pytest.raises(BadSourceError, match="known only once it is loaded"):
        costs_of({"model_type": "gpt2", "n_positions": 128} | sizes)
