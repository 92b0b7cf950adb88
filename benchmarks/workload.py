"""The work every subject is given: the same token ids, so that only speed differs.

Prompts are token ids drawn from the ordinary part of the vocabulary with a fixed seed; nothing
here depends on a tokenizer. Every prompt asked for is new unless a prefix is meant to be shared,
so a prefix cache helps only the measurements of a shared prefix.
"""

from __future__ import annotations

import random

FIRST_ORDINARY_TOKEN_ID = 100
LAST_ORDINARY_TOKEN_ID = 20_000

DECODE_CONCURRENCIES = (1, 4, 8, 32)
DECODE_PROMPT_TOKENS = 16
DECODE_OUTPUT_TOKENS = 64
PREFILL_LENGTHS = (512, 4096)
PREFIX_TOKENS = 4096


class PromptMaker:
    """Deterministic prompts: the same seed gives every subject the same sequence of prompts."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def prompt(self, num_tokens: int) -> list[int]:
        return [
            self._random.randint(FIRST_ORDINARY_TOKEN_ID, LAST_ORDINARY_TOKEN_ID)
            for _ in range(num_tokens)
        ]
