"""Published files, the default model's and a Q4_K_M of Gemma 3 270M: logits against transformers'
own, a tokenizer, and what packed weights, and keys and values in 8 bits, cost in quality."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer
from torch.nn.functional import cosine_similarity
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from benchmarks import measured_once
from inference.engine.kv_cache import DEFAULT_BLOCK_TOKENS as BLOCK_TOKENS
from inference.loading.loader import OpenedModel
from inference.models.decoder import DecoderModel
from inference.models.families.registry import family_of
from inference.models.native.library import find_compiler
from inference.models.registry import build_fastest_model
from inference.models.step_input import ALL_ROWS, StepInput
from tests.inference.loading.conftest import values_of

PROMPTS = ("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n", "The capital of")
SIZES = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
SIZES |= {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
ROPE = {"rope_type": "default", "rope_theta": 100000.0}
LLAMA = LlamaConfig(**SIZES, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_parameters=ROPE)
LLAMA.tie_word_embeddings = True
BOUNDS = {"smollm2": 0.045, "gemma-3-270m": 0.042}
"""Nats, of the four texts' mean."""
BOUND_OF_A_TEXT = 0.065


def theirs_of(opened: OpenedModel, path: Path) -> PreTrainedModel:
    """transformers' own model over the file as gguf itself dequantises it."""
    with torch.device("meta"):  # weights at random would take longer than all else here
        theirs = LlamaForCausalLM(LLAMA)
    theirs.model.rotary_emb = LlamaRotaryEmbedding(LLAMA)
    named = family_of(opened.config).gguf_name
    weights = {str(named(one.name)): values_of(one, 9, 3) for one in GGUFReader(path).tensors}
    unknown = theirs.load_state_dict(weights, strict=False, assign=True)
    assert unknown.missing_keys == ["lm_head.weight"] and not unknown.unexpected_keys
    theirs.tie_weights()
    return theirs.eval()


@torch.inference_mode()
def test_the_logits_are_transformers_own(default_gguf: Path, tmp_path: Path) -> None:
    with measured_once.open_on_cpu(default_gguf, tmp_path) as opened:
        config = opened.config
        assert (config.num_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
        assert (config.max_positions, config.eos_token_ids) == (8192, (2,))
        assert config.tie_embeddings and opened.num_parameters == 134_515_008
        assert 0 < default_gguf.stat().st_size - opened.weight_bytes < 2_000_000
        tokenizer = Tokenizer.from_file(str(opened.tokenizer_dir / "tokenizer.json"))
        theirs = theirs_of(opened, default_gguf)
        model = DecoderModel(config, opened.weights, 256, "fp32")
        for text in PROMPTS:
            ids = torch.tensor(tokenizer.encode(text).ids)
            step = StepInput.of_sequence(ids.numpy(), BLOCK_TOKENS, logit_rows=ALL_ROWS)
            found = model.forward(step, model.new_kv(-(-len(ids) // BLOCK_TOKENS), BLOCK_TOKENS))
            similarity = cosine_similarity(found, theirs(ids[None]).logits[0], dim=-1)
            assert similarity[-1] >= 0.999
            assert similarity.mean() >= 0.999
        assert "210 x Q4_1" in opened.weights.report()


@pytest.mark.slow
def test_gemmas_ids(gemma_gguf: Path, tmp_path: Path) -> None:
    """Spaces are kept as they are, and nothing is put before the text but the beginning."""
    with measured_once.open_on_cpu(gemma_gguf, tmp_path) as opened:
        tokenizer = Tokenizer.from_file(str(opened.tokenizer_dir / "tokenizer.json"))
        assert opened.config.sliding_window == 512
    found = tokenizer.encode("Hello  world\n\n1234 é")
    assert found.ids == [2, 9259, 138, 12392, 108, 236770, 236778, 236800, 236812, 1559]
    assert found.tokens[2] == "  " and tokenizer.get_vocab_size() == 262_144


def test_the_log_probability_is_of_the_token_that_follows() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1.0, 1.0, 1.0]]))
    found = measured_once.following(logits, torch.tensor([2, 1, 2], dtype=torch.int32))
    torch.testing.assert_close(torch.tensor(found).exp(), torch.tensor([0.25, 0.8]))


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("model", BOUNDS)
@torch.inference_mode()
def test_answers_are_as_likely_as_in_float32(
    model: str, default_gguf: Path, gemma_gguf: Path, tmp_path: Path, native_cache_dir: Path
) -> None:
    """Those of the native decoder with keys and values in 8 bits, as a load on a CPU has them."""
    file, found = {"smollm2": default_gguf, "gemma-3-270m": gemma_gguf}[model], {}
    with measured_once.open_on_cpu(file, tmp_path) as opened:
        given = opened.config, opened.weights, measured_once.MAX_TOKENS, native_cache_dir, "int8"
        decoder, _ = build_fastest_model(*given)
        for name, token_ids in measured_once.prompts(opened).items():
            assert len(token_ids) > 100
            ids = torch.tensor(token_ids, dtype=torch.int32)
            step = StepInput.of_sequence(ids.numpy(), BLOCK_TOKENS, logit_rows=ALL_ROWS)
            kv = decoder.new_kv(-(-measured_once.MAX_TOKENS // BLOCK_TOKENS), BLOCK_TOKENS)
            likely = measured_once.following(decoder.forward(step, kv), ids)
            exact = measured_once.exact_log_probabilities(opened, token_ids)
            found[name] = measured_once.mean_error(likely, exact)
    assert all(0 < error <= BOUND_OF_A_TEXT for error in found.values()), found
    assert statistics.fmean(found.values()) <= BOUNDS[model], found
