"""What storing keys and values in fewer bits costs:
``python -m benchmarks.weights.kv_formats GGUF``.

The native decoder answers a chat prompt with each of its KV formats; next-token logits are compared
with its own over fp32 keys and values, and with transformers' in float32, whose distance has the
rounding of activations in it as well. Decision 12 quotes the table.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.engine.steps import open_on_cpu
from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.models.cache.kv_format import NATIVE_FORMATS, KVFormat
from inference.models.registry import build_fastest_model
from inference.models.step_input import StepInput

DOCS_DIR = Path(__file__).resolve().parents[2] / "docs"
TEXT_FILES = ("architecture.md", "operating/models.md", "api.md")
TEXT_CHARS = (2000, 13_000)
MOST_COMPARED = 500
"""Positions at the end of the prompt: where there is most to look back at."""


def prompt_ids(tokenizer: Any, num_chars: int) -> torch.Tensor:
    """(num_tokens,)"""
    words = "".join((DOCS_DIR / name).read_text(encoding="utf-8") for name in TEXT_FILES)
    turns = [{"role": "user", "content": words[:num_chars]}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    ids: torch.Tensor = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    return ids[0]


def native_logits(
    gguf: Path, cache_dir: Path, kv_format: KVFormat, ids: torch.Tensor
) -> torch.Tensor:
    """The logits of the last ``MOST_COMPARED`` positions."""
    opened = open_on_cpu(gguf, cache_dir)
    num_tokens = len(ids)
    model, _ = build_fastest_model(
        opened.config, opened.weights, num_tokens, cache_dir / "native", kv_format
    )
    opened.close()
    compared = slice(-MOST_COMPARED, None)
    step = StepInput.of_sequence(ids.numpy(), DEFAULT_BLOCK_TOKENS, logit_rows=compared)
    num_blocks = -(-num_tokens // DEFAULT_BLOCK_TOKENS)
    return model.forward(step, model.new_kv(num_blocks, DEFAULT_BLOCK_TOKENS))


def measure(gguf: Path, cache_dir: Path, show: Callable[[list[str]], None]) -> None:
    import transformers

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    reference: Any = transformers.AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32
    )
    for num_chars in TEXT_CHARS:
        ids = prompt_ids(tokenizer, num_chars)
        expected = reference(ids.unsqueeze(0), logits_to_keep=MOST_COMPARED).logits[0]
        exact = native_logits(gguf, cache_dir, "fp32", ids)
        show([str(len(ids)), "fp32", "", "", "", *_distances(exact, expected)])
        for kv_format in (other for other in NATIVE_FORMATS if other != "fp32"):
            actual = native_logits(gguf, cache_dir, kv_format, ids)
            distances = [*_distances(actual, exact), *_distances(actual, expected)]
            show([str(len(ids)), kv_format, *distances])


def _distances(actual: torch.Tensor, expected: torch.Tensor) -> list[str]:
    similarity = torch.nn.functional.cosine_similarity(actual, expected, dim=-1)
    divergence = torch.nn.functional.kl_div(
        actual.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    return [f"{similarity.mean():.5f}", f"{similarity.min():.5f}", f"{divergence:.5f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    columns = ("mean cosine", "worst position", "KL")
    table = Table("tokens", "KV", *columns, *(f"{name}, transformers" for name in columns))
    with torch.inference_mode(), tempfile.TemporaryDirectory() as directory:
        measure(options.gguf.resolve(), Path(directory), lambda row: table.add_row(*row))
    Console().print(table)


if __name__ == "__main__":
    main()
