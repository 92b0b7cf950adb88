"""The default model's own weights in 4, 5, 6 and 8 bits: each bit more is closer to them."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn.functional import cosine_similarity

from inference.engine.load import quality
from inference.engine.load.quality import QUALITY_TEXT, QualityFigure, compare
from inference.loading.loader import OpenedModel, open_model
from inference.models.backend import AnyModel
from inference.models.native.model import NativeModel
from inference.models.registry import build_fastest_model, build_model
from inference.models.weights.stored import DenseWeight, GroupedWeight, StoredWeight
from inference.protocol.load import Quantization
from tests.inference.engine.load.loads import cpu_spec

pytestmark = pytest.mark.slow

CONTEXT_TOKENS = 512
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BITS: tuple[Quantization, ...] = ("q4", "q5", "q6", "q8")
MOST_NATS: dict[Quantization, float] = {"q4": 0.35, "q5": 0.13, "q6": 0.035, "q8": 0.003}
"""KL divergence a token."""
LEAST_COSINE: dict[Quantization, float] = {"q4": 0.94, "q5": 0.96, "q6": 0.993, "q8": 0.999}
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def dense_dir(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a model in bfloat16, off the grid of the file's own four bits: each weight is moved by
    up to half a step, as if it had been rounded from there. On the grid, four bits would hold it
    exactly."""
    directory = tmp_path_factory.mktemp("dense")
    spec = cpu_spec(default_gguf)
    opened = open_model(spec, directory / "cache", lambda _: None)
    assert isinstance(opened, OpenedModel)
    generator = torch.Generator().manual_seed(1)

    def moved(name: str) -> torch.Tensor:
        return off_the_grid(opened.weights.stored(name), generator).bfloat16()

    def norm(name: str) -> torch.Tensor:
        return opened.weights.tensor(f"{name}.weight").bfloat16()

    weights = {"model.embed_tokens": moved("model.embed_tokens"), "model.norm": norm("model.norm")}
    for index in range(30):
        layer = f"model.layers.{index}"
        for part in ("q", "k", "v", "o"):
            name = f"{layer}.self_attn.{part}_proj"
            weights[name] = moved(name)
        for part in ("gate", "up", "down"):
            weights[f"{layer}.mlp.{part}_proj"] = moved(f"{layer}.mlp.{part}_proj")
        for part in ("input", "post_attention"):
            name = f"{layer}.{part}_layernorm"
            weights[name] = norm(name)
    save_file(
        {f"{name}.weight": weight.contiguous() for name, weight in weights.items()},
        directory / "model.safetensors",
    )
    (directory / "config.json").write_text(json.dumps(CONFIG))
    for file in opened.tokenizer_dir.glob("tokenizer*.json"):
        shutil.copy(file, directory)
    opened.close()
    return directory


def off_the_grid(stored: StoredWeight, generator: torch.Generator) -> torch.Tensor:
    if isinstance(stored, DenseWeight):
        return stored.weight
    assert isinstance(stored, GroupedWeight)
    steps = stored.scales.float().repeat_interleave(32, dim=1)
    return stored.dequantize() + (torch.rand(stored.shape, generator=generator) - 0.5) * steps


def built(directory: Path, quantization: Quantization, execution: str, cache_dir: Path) -> AnyModel:
    spec = cpu_spec(directory, quantization=quantization)
    opened = open_model(spec, cache_dir / "models", lambda _: None)
    assert isinstance(opened, OpenedModel)
    try:
        if execution == "torch":
            return build_model(opened.config, opened.weights, CONTEXT_TOKENS)
        model, words = build_fastest_model(opened.config, opened.weights, CONTEXT_TOKENS, cache_dir)
        if not isinstance(model, NativeModel):
            pytest.skip(words)
        return model
    finally:
        opened.close()


def answer_of(model: AnyModel, tokenizer: Tokenizer) -> str:
    token_ids: list[int] = tokenizer.encode(QUESTION).ids
    num_prompt_tokens = len(token_ids)
    for _ in range(6):
        logits = quality.model_logits(model, [*token_ids, 0])  # of all tokens but the last
        token_ids.append(int(logits[-1].argmax()))
    answer: str = tokenizer.decode(token_ids[num_prompt_tokens:])
    return answer


@pytest.mark.parametrize("execution", ["native", "torch"])
def test_each_bit_more_is_closer_to_the_dense_weights(
    dense_dir: Path, native_cache_dir: Path, execution: str
) -> None:
    tokenizer = Tokenizer.from_file(str(dense_dir / "tokenizer.json"))
    token_ids: list[int] = tokenizer.encode(QUALITY_TEXT).ids[: CONTEXT_TOKENS - 1]
    dense = quality.model_logits(built(dense_dir, "none", execution, native_cache_dir), token_ids)
    reference = dense.log_softmax(-1).half()
    figures: dict[Quantization, QualityFigure] = {}
    for quantization in BITS:
        model = built(dense_dir, quantization, execution, native_cache_dir)
        logits = quality.model_logits(model, token_ids)
        figures[quantization] = compare(reference, logits, torch.tensor(token_ids[1:]))
        cosine = float(cosine_similarity(dense, logits, dim=-1).mean())
        assert cosine > LEAST_COSINE[quantization], quantization
        assert "Paris" in answer_of(model, tokenizer), quantization
    nats = [figures[quantization].kl_nats for quantization in BITS]
    assert nats == sorted(nats, reverse=True) and nats[-1] > 0, nats
    for fewer, more in pairwise(nats):
        assert more < 0.6 * fewer, nats
    assert all(figures[one].kl_nats < MOST_NATS[one] for one in BITS), nats
