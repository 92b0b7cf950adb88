"""transformers' continuous batching on the same GGUF: one manager, kept from start to end.

``generate_batch`` makes a manager for each call, which is most of the call; a server keeps one.
What is timed is the token times that the manager itself records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metering.bench.dequantised import load_dequantised
from metering.bench.streams import tokens_per_s_together
from metering.bench.workload import (
    DECODE_CONCURRENCIES,
    DECODE_OUTPUT_TOKENS,
    DECODE_PROMPT_TOKENS,
    PromptMaker,
)

LIBRARIES = ("torch", "transformers")
PAGE_TOKENS = 32
MAX_SEQUENCES = max(DECODE_CONCURRENCIES)
SPARE_PAGES = 32
RESULT_TIMEOUT_S = 1.0


class TransformersContinuous:
    """Decoding only: a prompt takes the same path as ``generate``'s.

    Left alone the cache takes nine tenths of the machine's memory and zeroes it; this one has
    room for the workload. Attention is SDPA over pages: flash attention has no CPU kernel, and
    ``torch.compile`` runs into its recompile limit, since paged attention differs by layer.
    """

    def __init__(self, gguf: str, num_threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(num_threads)
        self._num_threads = num_threads
        self._version = transformers.__version__
        model = load_dequantised(Path(gguf))
        self._dtype = str(model.dtype).removeprefix("torch.")
        self._manager: Any = model.init_continuous_batching(
            generation_config=transformers.GenerationConfig(
                do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=_cache_config(transformers),
        )
        self._manager.start()

    def describe(self) -> str:
        return (
            f"transformers {self._version} continuous batching, {self._dtype}, "
            f"{self._num_threads} threads"
        )

    def decode(self, concurrency: int, seed: int) -> float:
        prompts = PromptMaker(seed)
        self._manager.add_requests(
            [prompts.prompt(DECODE_PROMPT_TOKENS) for _ in range(concurrency)],
            max_new_tokens=1 + DECODE_OUTPUT_TOKENS,
            record_timestamps=True,
        )
        return tokens_per_s_together([self._next_timestamps() for _ in range(concurrency)])

    def prefill(self, num_tokens: int, seed: int) -> None:
        return

    def time_to_first_token(self, num_tokens: int, seed: int) -> None:
        return

    def close(self) -> None:
        self._manager.stop(block=True)
        self._manager.destroy()

    def _next_timestamps(self) -> list[float]:
        """Of a request that is done: without streaming, the manager delivers nothing else."""
        while (result := self._manager.get_result(timeout=RESULT_TIMEOUT_S)) is None:
            if not self._manager.is_running():
                raise RuntimeError("the continuous batching thread has ended")
        if result.error is not None:
            raise RuntimeError(result.error)
        timestamps: list[float] = result.timestamps
        return timestamps


def _cache_config(transformers: Any) -> Any:
    """Nothing is shared between the workload's prompts, and sharing costs hashing."""
    tokens_per_sequence = DECODE_PROMPT_TOKENS + 1 + DECODE_OUTPUT_TOKENS
    pages_per_sequence = -(-tokens_per_sequence // PAGE_TOKENS)
    return transformers.ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=MAX_SEQUENCES * pages_per_sequence + SPARE_PAGES,
        max_batch_tokens=MAX_SEQUENCES * DECODE_PROMPT_TOKENS,
        max_requests_per_batch=MAX_SEQUENCES,
        allow_block_sharing=False,
    )


def open_subject(gguf: str, num_threads: str) -> TransformersContinuous:
    return TransformersContinuous(gguf, int(num_threads))
