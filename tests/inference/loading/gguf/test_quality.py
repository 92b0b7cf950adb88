"""What packed weights, and keys and values in 8 bits, cost in quality stays within a bound: by how
much the log-probability of each token that follows differs from that of the same file in float32,
in nats. ``test_gemma`` holds the float32 logits to be transformers'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from helexa_site.program import REPOSITORY_DIR
from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.quality import QUALITY_TEXT
from inference.loading.loader import OpenedModel, open_model
from inference.loading.weights.opened_weights import OpenedWeights
from inference.models.layer_by_layer import prompt_logits
from inference.models.layers.linear import LinearFactory
from inference.models.native import build
from inference.models.registry import build_fastest_model
from inference.models.step_input import ALL_ROWS, StepInput
from inference.protocol.load import LoadSpec

MAX_TOKENS = 192
"""The longest part of each text that is read."""
LANGUAGES = """Der Fluss, der durch die Stadt fließt, war im Winter zugefroren, und die
Kinder liefen auf ihm bis zur Mühle. La boulangère ouvrait sa porte avant l'aube et saluait
chacun par son nom. El tren salió con media hora de retraso, pero nadie en el andén parecía
tener prisa. 春になると、川沿いの桜が一斉に咲き、遠くから人々が訪れる。 Когда дождь
кончился, во дворе остались лужи, в которых отражалось небо. 图书馆在周末也开放。"""
BOUNDS = {"smollm2": 0.065, "gemma-3-270m": 0.065}
"""Nats, of each text's mean: measured are 0.028 to 0.049, and 0.030 to 0.051."""


def texts() -> dict[str, str]:
    """Prose, a page for people, source text and six languages."""
    return {
        "prose": QUALITY_TEXT,
        "page": (REPOSITORY_DIR / "docs" / "operating" / "models.md").read_text(encoding="utf-8"),
        "code": (REPOSITORY_DIR / "inference" / "engine" / "engine.py").read_text(encoding="utf-8"),
        "languages": LANGUAGES,
    }


@contextmanager
def open_on_cpu(model: Path, cache_dir: Path) -> Iterator[OpenedModel]:
    spec = LoadSpec(job_id="test", model="test", source=f"path:{model}", devices=["cpu"])
    opened = open_model(spec, cache_dir, lambda progress: None)
    assert isinstance(opened, OpenedModel)
    try:
        yield opened
    finally:
        opened.close()


@torch.inference_mode()
def mean_errors(gguf: Path, cache_dir: Path, native_dir: Path) -> dict[str, float]:
    """For each text the mean absolute error in nats of the native decoder with keys and values in 8
    bits, as a load on a CPU has them."""
    import transformers

    with open_on_cpu(gguf, cache_dir) as opened:
        tokenizer = transformers.AutoTokenizer.from_pretrained(opened.tokenizer_dir)
        prompts = {
            name: tokenizer(text, return_tensors="pt")["input_ids"][0, :MAX_TOKENS]
            for name, text in texts().items()
        }
        model, _ = build_fastest_model(
            opened.config, opened.weights, MAX_TOKENS, native_dir, "int8"
        )
        exact = {name: following(exact_logits(opened, ids), ids) for name, ids in prompts.items()}
    errors = {}
    for name, ids in prompts.items():
        assert len(ids) > 100
        step = StepInput.of_sequence(ids.numpy(), DEFAULT_BLOCK_TOKENS, logit_rows=ALL_ROWS)
        kv = model.new_kv(-(-MAX_TOKENS // DEFAULT_BLOCK_TOKENS), DEFAULT_BLOCK_TOKENS)
        found = following(model.forward(step, kv), ids)
        errors[name] = float((found - exact[name]).abs().mean())
    return errors


def exact_logits(opened: OpenedModel, ids: torch.Tensor) -> torch.Tensor:
    """(num_tokens, vocab_size), of weights that are dequantised layer by layer."""
    factory = LinearFactory(torch.device("cpu"), torch.float32, prefill_copies=False, exact=True)
    weights = OpenedWeights(opened.files, factory, lambda _: None)
    step = StepInput.of_sequence(ids.numpy(), 1, logit_rows=ALL_ROWS)
    return prompt_logits(opened.config, weights, step, lambda _: None)


def following(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(num_tokens - 1,) the log-probability of each token that follows another. ``logits``
    (num_tokens, vocab_size), ``ids`` (num_tokens,)."""
    chosen = logits[:-1].float().log_softmax(-1)
    return chosen.gather(1, ids[1:].long().unsqueeze(1)).squeeze(1)


def test_the_log_probability_is_of_the_token_that_follows() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1.0, 1.0, 1.0]]))
    found = following(logits, torch.tensor([2, 1, 2], dtype=torch.int32))
    torch.testing.assert_close(found.exp(), torch.tensor([0.25, 0.8]))


@pytest.mark.slow
@pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("model", BOUNDS)
def test_answers_are_as_likely_as_in_float32(
    model: str, default_gguf: Path, gemma_gguf: Path, tmp_path: Path, native_cache_dir: Path
) -> None:
    file = {"smollm2": default_gguf, "gemma-3-270m": gemma_gguf}[model]
    for text, error in mean_errors(file, tmp_path, native_cache_dir).items():
        assert 0 < error <= BOUNDS[model], text
