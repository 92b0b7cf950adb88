"""transformers' ``generate`` on the same GGUF, dequantised as transformers itself does it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.weights.dequantised import load_dequantised
from benchmarks.workload import DECODE_OUTPUT_TOKENS

LIBRARIES = ("torch", "transformers")


class TransformersGenerate:
    keeps_prefixes = False  # ``generate`` keeps nothing between calls

    def __init__(self, gguf: str, num_threads: int) -> None:
        import torch
        import transformers

        self._torch: Any = torch
        self._version = transformers.__version__
        torch.set_num_threads(num_threads)
        self._model: Any = load_dequantised(Path(gguf))

    def describe(self) -> str:
        threads = self._torch.get_num_threads()
        dtype = str(self._model.dtype).removeprefix("torch.")
        return f"transformers {self._version} generate, {dtype}, {threads} threads"

    def decode(self, prompts: list[list[int]]) -> float:
        """From the difference of a long and a one-token run: the prompt's time cancels out."""
        first_s = self._generate_s(prompts, 1)
        all_s = self._generate_s(prompts, 1 + DECODE_OUTPUT_TOKENS)
        return len(prompts) * DECODE_OUTPUT_TOKENS / (all_s - first_s)

    def first_token_s(self, prompt: list[int]) -> float:
        return self._generate_s([prompt], 1)

    def close(self) -> None:
        del self._model

    def _generate_s(self, batch: list[list[int]], num_tokens: int) -> float:
        input_ids = self._torch.tensor(batch)
        started = time.perf_counter()
        self._model.generate(
            input_ids,
            attention_mask=self._torch.ones_like(input_ids),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            pad_token_id=0,
        )
        return time.perf_counter() - started


def open_subject(gguf: str, num_threads: str) -> TransformersGenerate:
    return TransformersGenerate(gguf, int(num_threads))
