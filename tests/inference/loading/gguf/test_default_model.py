"""The default model's real file: our logits against transformers' own reading of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import dequantize
from torch.nn.functional import cosine_similarity
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from inference.loading.gguf.header import TensorInfo, read_header
from inference.loading.loader import OpenedModel, open_model
from inference.models.decoder import DecoderModel
from inference.models.step_input import ALL_ROWS, StepInput, block_table_of
from inference.protocol.load import LoadSpec
from tests.inference.loading.conftest import GGUF_NAMES

BLOCK_TOKENS = 16
PROMPTS = [
    "1,9690,198,2683,359,253,5356,5646,11173,3365,3511,308,34519,28,7018,411,407,19712,8182,2,198,"
    "1,4093,198,1780,314,260,3575,282,4649,47,2,198,1,520,9531,198",
    "504,3575,282,4649,314",
]
"""Token ids: a chat turn about a capital, the start of a sentence."""


@pytest.fixture(scope="module")
def opened(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    spec = LoadSpec(job_id="1", model="m", source=f"path:{default_gguf}", devices=["cpu"])
    return open_model(spec, tmp_path_factory.mktemp("cache"), lambda progress: None)


@pytest.fixture(scope="module")
def model(opened: OpenedModel) -> DecoderModel:
    return DecoderModel(opened.config, opened.weights, 256, "fp32")


@pytest.fixture(scope="module")
def reference(default_gguf: Path) -> list[torch.Tensor]:
    """Next-token logits of each prompt, (num_tokens, vocab_size), from transformers' llama over
    the file as gguf itself reads and dequantises it."""
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
    infos = read_header(default_gguf).tensors.values()
    weights = {_their_name(i.name): _dequantized(i) for i in infos}
    theirs.load_state_dict(weights, strict=False, assign=True)
    theirs.tie_weights()
    with torch.inference_mode():
        return [theirs.eval()(ids.unsqueeze(0)).logits[0] for ids in _ids()]


def _their_name(name: str) -> str:
    names = {gguf_stem: stem for stem, gguf_stem in GGUF_NAMES.items()}
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{names[stem]}.{kind}"
    _, index, layer_stem = stem.split(".")
    return f"model.layers.{index}.{names[layer_stem]}.{kind}"


def _dequantized(info: TensorInfo) -> torch.Tensor:
    raw = np.fromfile(info.path, np.uint8, info.num_bytes, offset=info.offset)
    values = dequantize(raw.reshape(info.shape[0], -1), info.type).reshape(info.shape)
    heads = 9 if "attn_q" in info.name else 3 if "attn_k" in info.name else None
    if heads is not None:
        pairs = values.reshape(heads, -1, 2, info.shape[1])
        values = pairs.swapaxes(1, 2).reshape(info.shape)
    return torch.tensor(values)


def _ids() -> list[torch.Tensor]:
    return [torch.tensor([int(word) for word in prompt.split(",")]) for prompt in PROMPTS]


def prefilled(model: DecoderModel, ids: torch.Tensor) -> torch.Tensor:
    kv = model.new_kv(-(-ids.numel() // BLOCK_TOKENS), BLOCK_TOKENS)
    step = StepInput.of_sequence(ids.numpy(), BLOCK_TOKENS, logit_rows=ALL_ROWS)
    return model.forward(step, kv)


def decoded(model: DecoderModel, ids: torch.Tensor) -> torch.Tensor:
    """The same prompt, one token per step."""
    blocks = block_table_of([range(-(-ids.numel() // BLOCK_TOKENS))])
    kv = model.new_kv(blocks.size, BLOCK_TOKENS)
    steps = [
        StepInput.of_decodes([token_id], [position], blocks, BLOCK_TOKENS)
        for position, token_id in enumerate(ids.tolist())
    ]
    return torch.cat([model.forward(step, kv) for step in steps])


@torch.inference_mode()
def test_the_logits_are_transformers_own(
    model: DecoderModel, reference: list[torch.Tensor]
) -> None:
    """The sentence's start is decoded, too: its few rows show each layer's product as well."""
    turn, start = _ids()
    for found, theirs in (
        (prefilled(model, turn), reference[0]),
        (prefilled(model, start), reference[1]),
        (decoded(model, start), reference[1]),
    ):
        similarity = cosine_similarity(found, theirs, dim=-1)
        assert similarity[-1] >= 0.999
        assert similarity.mean() >= 0.999


def test_what_was_opened(opened: OpenedModel, model: DecoderModel, default_gguf: Path) -> None:
    config = opened.config
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.max_positions, config.eos_token_ids, config.tie_embeddings) == (8192, (2,), True)
    assert opened.num_parameters == 134_515_008
    assert 0 < default_gguf.stat().st_size - opened.weight_bytes < 2_000_000
    assert "210 x Q4_1" in opened.weights.report()
