"""llama.cpp through llama-cpp-python's C API: the same GGUF, batched as its server batches it."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from benchmarks.subjects import DECODE_OUTPUT_TOKENS, DECODE_PROMPT_TOKENS, PREFIX_TOKENS

LIBRARIES = ("llama_cpp", "numpy")
MAX_SEQUENCES = 32
ALL_LAYERS = 999
UBATCH_TOKENS = 512
"""llama.cpp's own default number of prompt tokens in one forward pass."""


class LlamaCpp:
    """One model and two contexts: 32 short sequences for decoding, one long one for prompts."""

    keeps_prefixes = True

    def __init__(self, gguf: str, num_threads: str, device: str = "cpu") -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._num_threads, self._device = int(num_threads), device
        self._last_prompt: list[int] = []
        llama_cpp.llama_backend_init()
        # Kept: ctypes does not keep a callback alive.
        self._silent = llama_cpp.llama_log_callback(lambda level, text, user_data: None)
        llama_cpp.llama_log_set(self._silent, ctypes.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        if device != "cpu":
            params.n_gpu_layers = ALL_LAYERS
        self._model = llama_cpp.llama_model_load_from_file(gguf.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp could not load {gguf}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        per_sequence = 2 * (DECODE_PROMPT_TOKENS + DECODE_OUTPUT_TOKENS)
        self._short = self._context(MAX_SEQUENCES * per_sequence, MAX_SEQUENCES)
        self._long = self._context(2 * PREFIX_TOKENS, 1)
        self._batch = llama_cpp.llama_batch_init(2 * PREFIX_TOKENS, 0, 1)

    def describe(self) -> str:
        version, device = self._lib.__version__, self._device
        return f"llama.cpp (llama-cpp-python {version}, {device}, {self._num_threads} threads)"

    def decode(self, prompts: list[list[int]]) -> float:
        self._clear(self._short)
        for sequence, prompt in enumerate(prompts):
            self._run(self._short, [(token, i, sequence) for i, token in enumerate(prompt)], 1)
        next_tokens = [0] * len(prompts)
        started = time.perf_counter()
        for step in range(DECODE_OUTPUT_TOKENS):
            position = DECODE_PROMPT_TOKENS + step
            rows = [(token, position, i) for i, token in enumerate(next_tokens)]
            self._run(self._short, rows, len(prompts))
            next_tokens = [self._greedy(self._short, i) for i in range(len(prompts))]
        return len(prompts) * DECODE_OUTPUT_TOKENS / (time.perf_counter() - started)

    def first_token_s(self, prompt: list[int]) -> float:
        """All but the last token's cells of a repeated prompt are kept, as in its server's slot."""
        rows = [(token, i, 0) for i, token in enumerate(prompt)]
        is_warm, self._last_prompt = prompt == self._last_prompt, prompt
        if not is_warm:
            self._clear(self._long)
        started = time.perf_counter()
        if is_warm:
            memory = self._lib.llama_get_memory(self._long)
            self._lib.llama_memory_seq_rm(memory, 0, len(prompt) - 1, -1)
            rows = rows[-1:]
        self._run(self._long, rows, 1)
        self._greedy(self._long, len(rows) - 1)
        return time.perf_counter() - started

    def log_probabilities(self, token_ids: list[int]) -> list[float]:
        import numpy

        self._clear(self._long)
        self._last_prompt = []
        rows = [(token, i, 0) for i, token in enumerate(token_ids)]
        self._run(self._long, rows, len(rows))
        found = []
        for row, token in enumerate(token_ids[1:]):
            logits = self._lib.llama_get_logits_ith(self._long, row)
            values = numpy.ctypeslib.as_array(logits, (self._vocab_size,)).astype(numpy.float64)
            values -= values.max()
            found.append(float(values[token] - numpy.log(numpy.exp(values).sum())))
        return found

    def close(self) -> None:
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._short)
        self._lib.llama_free(self._long)
        self._lib.llama_model_free(self._model)

    def _context(self, num_tokens: int, num_sequences: int) -> Any:
        params = self._lib.llama_context_default_params()
        params.n_ctx = num_tokens
        params.n_batch = 2 * PREFIX_TOKENS
        params.n_ubatch = UBATCH_TOKENS
        params.n_seq_max = num_sequences
        params.n_threads = self._num_threads
        params.n_threads_batch = self._num_threads
        params.no_perf = True
        return self._lib.llama_init_from_model(self._model, params)

    def _clear(self, context: Any) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(context), True)

    def _run(self, context: Any, rows: list[tuple[int, int, int]], num_logits: int) -> None:
        """``rows``: (token, position, sequence). Logits for the last ``num_logits``."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i >= len(rows) - num_logits
        if status := self._lib.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode returned {status}")

    def _greedy(self, context: Any, row: int) -> int:
        import numpy

        logits = self._lib.llama_get_logits_ith(context, row)
        return int(numpy.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())


open_subject = LlamaCpp
