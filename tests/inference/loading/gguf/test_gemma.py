"""Gemma 3 270M, a published Q4_K_M: its tokenizer, and our logits against transformers' own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from torch.nn.functional import cosine_similarity
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

from benchmarks.quality import exact_logits, open_on_cpu
from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.loading.gguf.header import TensorInfo, read_header
from inference.loading.loader import OpenedModel
from inference.models.families.registry import family_of
from inference.models.native.model import NativeModel
from inference.models.registry import build_fastest_model
from inference.models.step_input import ALL_ROWS, StepInput

pytestmark = pytest.mark.slow
PROMPTS = (
    "The capital of France is Paris, and the capital of Italy is",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
    "Der Fluss fließt durch die Stadt. 東京は日本の首都です。",
)


@pytest.fixture(scope="module")
def opened(gemma_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedModel]:
    with open_on_cpu(gemma_gguf, tmp_path_factory.mktemp("cache")) as model:
        yield model


@pytest.fixture(scope="module")
def tokenizer(opened: OpenedModel) -> Tokenizer:
    return Tokenizer.from_file(str(opened.tokenizer_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[torch.Tensor]:
    return [torch.tensor(tokenizer.encode(text).ids) for text in PROMPTS]


@pytest.fixture(scope="module")
def reference(
    gemma_gguf: Path, opened: OpenedModel, prompts: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Next-token logits of each prompt, (num_tokens, vocab_size), from transformers' Gemma 3 in
    float32 over the file as gguf itself dequantises it."""
    config = Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        sliding_window=512,
        query_pre_attn_scalar=256,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        theirs = Gemma3ForCausalLM(config)
    theirs.model.rotary_emb = Gemma3RotaryEmbedding(config)
    theirs.model.embed_tokens.embed_scale = torch.tensor(640**0.5)
    family = family_of(opened.config)
    weights = {}
    for info in read_header(gemma_gguf).tensors.values():
        name = family.gguf_name(info.name)
        assert name is not None, info.name
        # llama.cpp's converter has added one to the norms' weights.
        weights[name] = _dequantized(info) - (1.0 if "norm" in name else 0.0)
    unknown = theirs.load_state_dict(weights, strict=False, assign=True)
    assert unknown.missing_keys == ["lm_head.weight"] and not unknown.unexpected_keys
    theirs.tie_weights()
    with torch.inference_mode():
        return [theirs.eval()(ids.unsqueeze(0)).logits[0] for ids in prompts]


def _dequantized(info: TensorInfo) -> torch.Tensor:
    raw = np.fromfile(info.path, np.uint8, info.num_bytes, offset=info.offset)
    values = dequantize(raw.reshape(info.shape[0], -1), info.type).reshape(info.shape)
    return torch.tensor(values, dtype=torch.float32)


def test_float32_is_transformers_own(
    opened: OpenedModel, prompts: list[torch.Tensor], reference: list[torch.Tensor]
) -> None:
    """``test_quality`` measures by it."""
    for ids, theirs in zip(prompts, reference, strict=True):
        ours = exact_logits(opened, ids)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_the_native_decoders_logits_are_near_transformers_own(
    opened: OpenedModel,
    prompts: list[torch.Tensor],
    reference: list[torch.Tensor],
    native_cache_dir: Path,
) -> None:
    model, _ = build_fastest_model(opened.config, opened.weights, 64, native_cache_dir, "int8")
    assert isinstance(model, NativeModel)
    for ids, theirs in zip(prompts, reference, strict=True):
        kv = model.new_kv(-(-len(ids) // DEFAULT_BLOCK_TOKENS), DEFAULT_BLOCK_TOKENS)
        step = StepInput.of_sequence(ids.numpy(), DEFAULT_BLOCK_TOKENS, logit_rows=ALL_ROWS)
        similarity = cosine_similarity(model.forward(step, kv), theirs, dim=-1)
        assert similarity.min() >= 0.999


def test_what_was_opened(opened: OpenedModel, gemma_gguf: Path) -> None:
    config = opened.config
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (18, 640, 262_144)
    assert config.sliding_window == 512
    assert opened.num_parameters == 268_098_176
    assert 0 < gemma_gguf.stat().st_size - opened.weight_bytes < 16_000_000


def test_ids(tokenizer: Tokenizer) -> None:
    """Spaces are kept as they are, and nothing is put before the text but the beginning."""
    found = tokenizer.encode("Hello  world\n\n1234 é")
    assert found.tokens == [
        "<bos>", "Hello", "  ", "world", "\n\n", "1", "2", "3", "4", "▁é",
    ]  # fmt: skip
    assert found.ids == [2, 9259, 138, 12392, 108, 236770, 236778, 236800, 236812, 1559]
    assert tokenizer.get_vocab_size() == 262_144


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_comes_back_exactly(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids[1:], skip_special_tokens=False) == text
