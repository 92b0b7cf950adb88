"""Published files, the default model's and a Q4_K_M of Gemma 3 270M: our logits against
transformers' own over the files as gguf itself dequantises them, and Gemma's tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import dequantize
from tokenizers import Tokenizer
from torch.nn.functional import cosine_similarity
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedModel as Theirs
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from benchmarks.quality import exact_logits, open_on_cpu
from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS as BLOCK_TOKENS
from inference.loading.gguf.header import TensorInfo, read_header
from inference.loading.loader import OpenedModel
from inference.models.backend import AnyModel
from inference.models.decoder import DecoderModel
from inference.models.families.registry import family_of
from inference.models.step_input import ALL_ROWS, StepInput

PROMPTS = {
    "smollm2": ("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n", "The capital of"),
    "gemma": (
        "The capital of France is Paris, and the capital of Italy is",
        "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
        "Der Fluss fließt durch die Stadt. 東京は日本の首都です。",
    ),
}


@dataclass(frozen=True, slots=True)
class Published:
    opened: OpenedModel
    tokenizer: Tokenizer
    prompts: list[torch.Tensor]
    theirs: list[torch.Tensor]
    """Next-token logits of each prompt, (num_tokens, vocab_size)."""


def published(name: str, path: Path, cache_dir: Path) -> Iterator[Published]:
    with open_on_cpu(path, cache_dir) as opened:
        tokenizer = Tokenizer.from_file(str(opened.tokenizer_dir / "tokenizer.json"))
        prompts = [torch.tensor(tokenizer.encode(text).ids) for text in PROMPTS[name]]
        theirs = (llama if name == "smollm2" else gemma)()
        family = family_of(opened.config)
        weights = {}
        for info in read_header(path).tensors.values():
            # llama.cpp's converter has added one to the weights of Gemma's norms.
            offset = 1.0 if name == "gemma" and "norm" in info.name else 0.0
            weights[str(family.gguf_name(info.name))] = _dequantized(name, info) - offset
        unknown = theirs.load_state_dict(weights, strict=False, assign=True)
        assert unknown.missing_keys == ["lm_head.weight"] and not unknown.unexpected_keys
        theirs.tie_weights()
        with torch.inference_mode():
            logits = [theirs.eval()(ids.unsqueeze(0)).logits[0] for ids in prompts]
        yield Published(opened, tokenizer, prompts, logits)


@pytest.fixture(scope="module")
def smollm2(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    yield from published("smollm2", default_gguf, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def gemma3(gemma_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    yield from published("gemma", gemma_gguf, tmp_path_factory.mktemp("cache"))


def llama() -> Theirs:
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):  # weights at random would take longer than all else here
        theirs = LlamaForCausalLM(config)
    theirs.model.rotary_emb = LlamaRotaryEmbedding(config)
    return theirs


def gemma() -> Theirs:
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
    return theirs


def _dequantized(name: str, info: TensorInfo) -> torch.Tensor:
    raw = np.fromfile(info.path, np.uint8, info.num_bytes, offset=info.offset)
    values = dequantize(raw.reshape(info.shape[0], -1), info.type).reshape(info.shape)
    heads = 9 if "attn_q" in info.name else 3 if "attn_k" in info.name else None
    if name == "smollm2" and heads is not None:
        pairs = values.reshape(heads, -1, 2, info.shape[1])
        values = pairs.swapaxes(1, 2).reshape(info.shape)
    return torch.tensor(values, dtype=torch.float32)


def prefilled(model: AnyModel, ids: torch.Tensor) -> torch.Tensor:
    kv = model.new_kv(-(-ids.numel() // BLOCK_TOKENS), BLOCK_TOKENS)
    step = StepInput.of_sequence(ids.numpy(), BLOCK_TOKENS, logit_rows=ALL_ROWS)
    return model.forward(step, kv)


@torch.inference_mode()
def test_the_logits_are_transformers_own(smollm2: Published) -> None:
    opened = smollm2.opened
    model = DecoderModel(opened.config, opened.weights, 256, "fp32")
    for ids, theirs in zip(smollm2.prompts, smollm2.theirs, strict=True):
        similarity = cosine_similarity(prefilled(model, ids), theirs, dim=-1)
        assert similarity[-1] >= 0.999
        assert similarity.mean() >= 0.999
    assert "210 x Q4_1" in opened.weights.report()


def test_what_was_opened(smollm2: Published, default_gguf: Path) -> None:
    config = smollm2.opened.config
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.max_positions, config.eos_token_ids, config.tie_embeddings) == (8192, (2,), True)
    assert smollm2.opened.num_parameters == 134_515_008
    assert 0 < default_gguf.stat().st_size - smollm2.opened.weight_bytes < 2_000_000


@pytest.mark.slow
def test_gemmas_float32_is_transformers_own(gemma3: Published) -> None:
    """``test_quality`` measures by it."""
    assert gemma3.opened.config.sliding_window == 512
    for ids, theirs in zip(gemma3.prompts, gemma3.theirs, strict=True):
        ours = exact_logits(gemma3.opened, ids)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_ids(gemma3: Published) -> None:
    """Spaces are kept as they are, and nothing is put before the text but the beginning."""
    found = gemma3.tokenizer.encode("Hello  world\n\n1234 é")
    assert found.tokens == [
        "<bos>", "Hello", "  ", "world", "\n\n", "1", "2", "3", "4", "▁é",
    ]  # fmt: skip
    assert found.ids == [2, 9259, 138, 12392, 108, 236770, 236778, 236800, 236812, 1559]
    assert gemma3.tokenizer.get_vocab_size() == 262_144
