"""transformers' continuous batching on the same GGUF: paged attention, one shared manager."""

from __future__ import annotations

from typing import Any

from metering.bench.subjects.transformers_generate import TransformersGenerate

MOST_AT_ONCE = 8
"""On CPU 32 take minutes a reading."""


class TransformersContinuous(TransformersGenerate):
    """Decoding only: its prompts take the same path as ``generate``'s."""

    def describe(self) -> str:
        return super().describe().replace("generate", "generate_batch (continuous batching)")

    def decode(self, concurrency: int, seed: int) -> float | None:
        return super().decode(concurrency, seed) if concurrency <= MOST_AT_ONCE else None

    def prefill(self, num_tokens: int, seed: int) -> None:
        return

    def _run(self, batch: list[list[int]], num_tokens: int) -> None:
        import transformers

        config: Any = transformers.GenerationConfig(
            do_sample=False, max_new_tokens=num_tokens, eos_token_id=-1, pad_token_id=0
        )
        answers = self._model.generate_batch(batch, generation_config=config, warmup=False)
        assert all(len(one.generated_tokens) == num_tokens for one in answers.values())


def open_subject(gguf: str, num_threads: str) -> TransformersContinuous:
    return TransformersContinuous(gguf, int(num_threads))
