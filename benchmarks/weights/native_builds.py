"""Two builds of the native decoder, alternating in one process:
``python -m benchmarks.weights.native_builds GGUF CHECKOUT``.

What another process does to this machine happens to both alike, so small differences show that two
runs one after the other would hide. ``CHECKOUT`` is another working tree of this repository with
the same structs (``native/cpp/model.h``). Decision 20 quotes the ratios.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.command import DATA_DIR
from benchmarks.engine.steps import open_on_cpu
from inference.engine.cache.kv_cache import DEFAULT_BLOCK_TOKENS
from inference.models.cache.kv_format import KVFormat
from inference.models.native.build import SOURCE_DIR, automatic_kv_format, load_library
from inference.models.native.model import NativeModel
from inference.models.native.storage import NativeKV
from inference.models.step_input import StepInput

NATIVE_FOLDER = SOURCE_DIR.relative_to(SOURCE_DIR.parents[3])

Forward = Callable[[NativeModel, NativeKV], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Pass:
    """``num_rows`` prompt tokens of one sequence after ``start`` others, or one new token each of
    as many sequences."""

    num_rows: int
    start: int
    is_prompt: bool

    @classmethod
    def parse(cls, text: str, *, is_prompt: bool) -> Pass:
        """``ROWS`` or ``ROWS@START``."""
        rows, _, start = text.partition("@")
        return cls(int(rows), int(start or 0), is_prompt)

    def __str__(self) -> str:
        kind = "prompt" if self.is_prompt else "decode"
        return f"{kind}, {self.num_rows} after {self.start}"

    @property
    def num_blocks(self) -> int:
        num_sequences = 1 if self.is_prompt else self.num_rows
        return num_sequences * self._blocks_each

    @property
    def num_tokens(self) -> int:
        return self.start + (self.num_rows if self.is_prompt else 1)

    @property
    def _blocks_each(self) -> int:
        return -(-self.num_tokens // DEFAULT_BLOCK_TOKENS)

    def forward(self, vocab_size: int) -> Forward:
        """A pass over tokens drawn once; cache positions never computed are zeros."""
        draw = random.Random(1)
        ids = [draw.randrange(vocab_size) for _ in range(self.num_rows)]
        step = self._prompt(ids) if self.is_prompt else self._decode(ids)
        return lambda model, kv: model.forward(step, kv)

    def _prompt(self, ids: list[int]) -> StepInput:
        return StepInput.of_sequence(ids, DEFAULT_BLOCK_TOKENS, start=self.start)

    def _decode(self, ids: list[int]) -> StepInput:
        blocks = np.arange(self.num_blocks, dtype=np.int32).reshape(len(ids), self._blocks_each)
        return StepInput.of_decodes(ids, [self.start] * len(ids), blocks, DEFAULT_BLOCK_TOKENS)


def load(gguf: Path, cache_dir: Path, checkout: Path, context_tokens: int) -> list[NativeModel]:
    """The model with this build and with the other's: over the same weights, because where in the
    memory they lie changes a decode step's time by several percent."""
    opened = open_on_cpu(gguf, cache_dir)
    kv_format: KVFormat = automatic_kv_format()
    library = load_library(cache_dir)
    this = NativeModel(library, opened.config, opened.weights, context_tokens, kv_format)
    opened.close()
    other = copy.copy(this)
    other.decoder = this.decoder.on(load_library(cache_dir, checkout / NATIVE_FOLDER))
    return [this, other]


def times_s(models: list[NativeModel], step: Pass, rounds: int) -> tuple[list[list[float]], bool]:
    """Each round's times, in the models' order; and whether their logits were the same bit for bit.
    Who begins a round changes."""
    forward = step.forward(models[0].config.vocab_size)
    kv = models[0].new_kv(step.num_blocks, DEFAULT_BLOCK_TOKENS)
    logits = [forward(model, kv) for model in models]
    readings = []
    for number in range(rounds):
        taken = [0.0] * len(models)
        for index in sorted(range(len(models)), reverse=bool(number % 2)):
            started_s = time.perf_counter()
            forward(models[index], kv)
            taken[index] = time.perf_counter() - started_s
        readings.append(taken)
    return readings, all(torch.equal(logits[0], other) for other in logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("checkout", type=Path, help="another working tree")
    parser.add_argument("--prompts", nargs="*", default=["512", "152@152", "128@3904"])
    parser.add_argument("--decodes", nargs="*", default=["1@64", "4@64", "8@64", "32@64"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--data-dir", type=Path, default=DATA_DIR, help="keeps the compiled libraries"
    )
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    steps = [
        *(Pass.parse(text, is_prompt=True) for text in options.prompts),
        *(Pass.parse(text, is_prompt=False) for text in options.decodes),
    ]
    context_tokens = max(step.num_tokens for step in steps)
    table = Table("median ms", "this build", "the other", "median ratio", "logits")
    with torch.inference_mode():
        models = load(
            options.gguf.resolve(), options.data_dir, options.checkout.resolve(), context_tokens
        )
        for step in steps:
            readings, are_same = times_s(models, step, options.rounds)
            here, there = (
                f"{statistics.median(taken) * 1e3:.2f}" for taken in zip(*readings, strict=True)
            )
            ratio = statistics.median(other / this for this, other in readings)
            table.add_row(str(step), here, there, f"{ratio:.3f}", "same" if are_same else "differ")
    Console().print(table)


if __name__ == "__main__":
    main()
