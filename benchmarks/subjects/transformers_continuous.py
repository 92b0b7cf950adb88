"""transformers' continuous batching on the same weights: one manager, kept from start to end.

``generate_batch`` makes a manager for each call, which is most of the call; a server keeps one.
The figures come from the token times that the manager itself records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.weights.dequantised import load_dequantised
from benchmarks.workload import (
    DECODE_CONCURRENCIES,
    DECODE_OUTPUT_TOKENS,
    DECODE_PROMPT_TOKENS,
    PromptMaker,
    tokens_per_s_together,
)

LIBRARIES = ("torch", "transformers")
CARD_PAGE_TOKENS = 256
"""transformers' own choice, which its flash attention requires."""
SPARE_PAGES = 32
RESULT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """The required size of the manager's cache."""

    num_sequences: int
    sequence_tokens: int
    """The longest sequence, prompt and output."""
    batch_tokens: int
    """The most tokens that one step computes."""
    page_tokens: int

    @property
    def num_pages(self) -> int:
        return self.num_sequences * -(-self.sequence_tokens // self.page_tokens) + SPARE_PAGES


WORKLOAD_CACHE = CacheSize(
    num_sequences=max(DECODE_CONCURRENCIES),
    sequence_tokens=DECODE_PROMPT_TOKENS + 1 + DECODE_OUTPUT_TOKENS,
    batch_tokens=max(DECODE_CONCURRENCIES) * DECODE_PROMPT_TOKENS,
    page_tokens=32,
)


class TransformersContinuous:
    """Decoding only: a prompt takes the same path as ``generate``'s.

    By default the cache allocates nine tenths of the machine's memory and zeroes it; this one has
    room for the workload. Attention is transformers' own choice: flash attention where that is
    installed, else SDPA over pages, as on every CPU. ``torch.compile`` runs into its recompile
    limit, since paged attention differs by layer.
    """

    def __init__(self, model: Any, cache: CacheSize) -> None:
        import transformers

        self._model = model
        self._version = transformers.__version__
        self._manager: Any = model.init_continuous_batching(
            generation_config=transformers.GenerationConfig(
                do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=_cache_config(transformers, cache),
        )
        self._manager.start()

    def describe(self) -> str:
        import torch

        dtype = str(self._model.dtype).removeprefix("torch.")
        attention = self._model.config._attn_implementation
        words = f"transformers {self._version} continuous batching, {dtype}, {attention}"
        on_cpu = self._model.device.type == "cpu"
        return f"{words}, {torch.get_num_threads()} threads" if on_cpu else words

    def decode(
        self,
        concurrency: int,
        seed: int,
        prompt_tokens: int = DECODE_PROMPT_TOKENS,
        output_tokens: int = DECODE_OUTPUT_TOKENS,
    ) -> float:
        prompts = PromptMaker(seed)
        self._manager.add_requests(
            [prompts.prompt(prompt_tokens) for _ in range(concurrency)],
            max_new_tokens=1 + output_tokens,
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
        """The timestamps of a finished request: without streaming, the manager delivers nothing
        else."""
        while (result := self._manager.get_result(timeout=RESULT_TIMEOUT_S)) is None:
            if not self._manager.is_running():
                raise RuntimeError("the continuous batching thread has ended")
        if result.error is not None:
            raise RuntimeError(result.error)
        timestamps: list[float] = result.timestamps
        return timestamps


def _cache_config(transformers: Any, cache: CacheSize) -> Any:
    """The workload's prompts share nothing, and sharing costs hashing."""
    return transformers.ContinuousBatchingConfig(
        page_size=cache.page_tokens,
        num_blocks=cache.num_pages,
        max_batch_tokens=cache.batch_tokens,
        max_requests_per_batch=cache.num_sequences,
        allow_block_sharing=False,
    )


def open_subject(gguf: str, num_threads: str) -> TransformersContinuous:
    import torch

    torch.set_num_threads(int(num_threads))
    return TransformersContinuous(load_dequantised(Path(gguf)), WORKLOAD_CACHE)


def open_folder(
    folder: str, device: str, num_sequences: str, sequence_tokens: str, batch_tokens: str
) -> TransformersContinuous:
    """On dense weights in bfloat16, on any device."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # Read to the host first: reading straight to a device needs a package that nothing else here
    # uses.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    cache = CacheSize(
        num_sequences=int(num_sequences),
        sequence_tokens=int(sequence_tokens),
        batch_tokens=int(batch_tokens),
        page_tokens=CARD_PAGE_TOKENS,
    )
    return TransformersContinuous(model.to(device), cache)
