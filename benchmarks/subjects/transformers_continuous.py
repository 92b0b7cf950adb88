"""transformers' continuous batching on the same weights: one manager, kept from start to end.

``generate_batch`` makes a manager for each call, which is most of the call; a server keeps one.
The figures come from the token times that the manager itself records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.weights.dequantised import load_dequantised
from benchmarks.workload import (
    DECODE_CONCURRENCIES,
    DECODE_OUTPUT_TOKENS,
    DECODE_PROMPT_TOKENS,
    tokens_per_s_together,
)

LIBRARIES = ("torch", "transformers")
CPU_PAGE_TOKENS, CARD_PAGE_TOKENS = 32, 256
"""The card's is transformers' own choice, which its flash attention requires."""
SPARE_PAGES = 32
RESULT_TIMEOUT_S = 1.0


class TransformersContinuous:
    """Decoding only: a prompt takes the same path as ``generate``'s.

    By default the cache allocates nine tenths of the machine's memory and zeroes it; this one has
    room for the workload. Attention is transformers' own choice: flash attention where that is
    installed, else SDPA over pages, as on every CPU. ``torch.compile`` runs into its recompile
    limit, since paged attention differs by layer.
    """

    keeps_prefixes = False

    def __init__(self, model: Any) -> None:
        import transformers

        self._model = model
        self._version = transformers.__version__
        self._manager: Any = model.init_continuous_batching(
            generation_config=transformers.GenerationConfig(
                do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=_cache_config(transformers, model.device.type),
        )
        self._manager.start()

    def describe(self) -> str:
        import torch

        dtype = str(self._model.dtype).removeprefix("torch.")
        attention = self._model.config._attn_implementation
        words = f"transformers {self._version} continuous batching, {dtype}, {attention}"
        on_cpu = self._model.device.type == "cpu"
        return f"{words}, {torch.get_num_threads()} threads" if on_cpu else words

    def decode(self, prompts: list[list[int]]) -> float:
        self._manager.add_requests(
            prompts, max_new_tokens=1 + DECODE_OUTPUT_TOKENS, record_timestamps=True
        )
        return tokens_per_s_together([self._next_timestamps() for _ in prompts])

    def first_token_s(self, prompt: list[int]) -> None:
        return

    def close(self) -> None:
        self._manager.stop(block=True)
        self._manager.destroy()

    def _next_timestamps(self) -> list[float]:
        """The timestamps of a finished request: without streaming, the manager delivers nothing
        else."""
        while (result := self._manager.get_result(timeout=RESULT_TIMEOUT_S)) is None:
            if not self._manager.is_running():
                raise RuntimeError("the continuous batching thread has ended")
        if result.error is not None:
            raise RuntimeError(result.error)
        timestamps: list[float] = result.timestamps
        return timestamps


def _cache_config(transformers: Any, device_type: str) -> Any:
    """The workload's prompts share nothing, and sharing costs hashing."""
    page_tokens = CPU_PAGE_TOKENS if device_type == "cpu" else CARD_PAGE_TOKENS
    num_sequences = max(DECODE_CONCURRENCIES)
    sequence_tokens = DECODE_PROMPT_TOKENS + 1 + DECODE_OUTPUT_TOKENS
    return transformers.ContinuousBatchingConfig(
        page_size=page_tokens,
        num_blocks=num_sequences * -(-sequence_tokens // page_tokens) + SPARE_PAGES,
        max_batch_tokens=num_sequences * DECODE_PROMPT_TOKENS,
        max_requests_per_batch=num_sequences,
        allow_block_sharing=False,
    )


def open_subject(gguf: str, num_threads: str, device: str = "cpu") -> TransformersContinuous:
    """``gguf``: the file, or a folder of dense weights."""
    import torch

    torch.set_num_threads(int(num_threads))
    return TransformersContinuous(load_dequantised(Path(gguf)).to(device))
