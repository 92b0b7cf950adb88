"""What computing with packed weights costs in quality:
``python -m benchmarks.weights.quality [MODEL …]``.

For each of four texts, by how much the log-probability of the token that follows differs from that
of the same file in float32, in nats, as the mean of absolute values over its tokens: the native
decoder's with keys and values in 8 bits, as a load on a CPU has them, and llama.cpp's with its own
defaults, where llama-cpp-python is installed. The float32 logits are computed by torch's operators
on dequantised weights, which tests hold to be transformers'. MODEL is smollm2 or gemma-3-270m, both
without it, or a GGUF file.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.engine.steps import open_on_cpu
from benchmarks.weights.model_files import FETCHED, model_file
from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.engine.load.trial.quality_text import QUALITY_TEXT
from inference.loading.loader import OpenedModel
from inference.loading.weights.opened_weights import OpenedWeights
from inference.models.layer_by_layer import prompt_logits
from inference.models.layers.linear import LinearFactory
from inference.models.registry import build_fastest_model
from inference.models.step_input import ALL_ROWS, StepInput

REPOSITORY_DIR = Path(__file__).resolve().parents[2]
DATA_DIR = REPOSITORY_DIR / "var" / "bench"
MOST_TOKENS = 192
"""The longest part of each text that is read."""
LANGUAGES = """Der Fluss, der durch die Stadt fließt, war im Winter zugefroren, und die
Kinder liefen auf ihm bis zur Mühle. La boulangère ouvrait sa porte avant l'aube et saluait
chacun par son nom. El tren salió con media hora de retraso, pero nadie en el andén parecía
tener prisa. 春になると、川沿いの桜が一斉に咲き、遠くから人々が訪れる。 Когда дождь
кончился, во дворе остались лужи, в которых отражалось небо. 图书馆在周末也开放。"""


def texts() -> dict[str, str]:
    """Prose, a page for people, source text and six languages."""
    return {
        "prose": QUALITY_TEXT,
        "page": (REPOSITORY_DIR / "docs" / "operating" / "models.md").read_text(encoding="utf-8"),
        "code": (REPOSITORY_DIR / "inference" / "engine" / "engine.py").read_text(encoding="utf-8"),
        "languages": LANGUAGES,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReading:
    """Mean absolute errors in nats; ``llama_cpp`` is ``None`` where it is not installed."""

    text: str
    num_tokens: int
    helexa: float
    llama_cpp: float | None


@torch.inference_mode()
def readings(gguf: Path, cache_dir: Path, native_dir: Path) -> Iterator[QualityReading]:
    """Raises ``LoadError``."""
    import transformers

    opened = open_on_cpu(gguf, cache_dir)
    tokenizer = transformers.AutoTokenizer.from_pretrained(opened.tokenizer_dir)
    prompts = {
        name: tokenizer(text, return_tensors="pt")["input_ids"][0, :MOST_TOKENS]
        for name, text in texts().items()
    }
    model, _ = build_fastest_model(opened.config, opened.weights, MOST_TOKENS, native_dir, "int8")
    exact = {name: following(exact_logits(opened, ids), ids) for name, ids in prompts.items()}
    opened.close()
    num_blocks = -(-MOST_TOKENS // DEFAULT_BLOCK_TOKENS)
    ours = {}
    for name, ids in prompts.items():
        step = StepInput.of_sequence(ids.numpy(), DEFAULT_BLOCK_TOKENS, logit_rows=ALL_ROWS)
        kv = model.new_kv(num_blocks, DEFAULT_BLOCK_TOKENS)
        ours[name] = following(model.forward(step, kv), ids)
    del model
    peer = _peer(gguf, prompts)
    for name, ids in prompts.items():
        yield QualityReading(
            text=name,
            num_tokens=len(ids),
            helexa=_error(ours[name], exact[name]),
            llama_cpp=_error(peer[name], exact[name]) if name in peer else None,
        )


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


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).abs().mean())


def _peer(gguf: Path, prompts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Empty without llama-cpp-python."""
    if importlib.util.find_spec("llama_cpp") is None:
        return {}
    from benchmarks.subjects.llama_cpp import LlamaCpp

    peer = LlamaCpp(str(gguf), torch.get_num_threads())
    try:
        return {
            name: following(torch.from_numpy(peer.prompt_logits(ids.tolist())), ids)
            for name, ids in prompts.items()
        }
    finally:
        peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=FETCHED)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    table = Table("model", "text", "tokens", "helexa", "llama.cpp")
    for name in options.models:
        file = Path(name) if name.endswith(".gguf") else model_file(name, DATA_DIR)
        with tempfile.TemporaryDirectory() as directory:
            for one in readings(file.resolve(), Path(directory), DATA_DIR / "native"):
                peer = "" if one.llama_cpp is None else f"{one.llama_cpp:.4f}"
                table.add_row(name, one.text, str(one.num_tokens), f"{one.helexa:.4f}", peer)
    Console().print(table)


if __name__ == "__main__":
    main()
