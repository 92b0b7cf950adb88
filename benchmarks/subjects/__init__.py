"""The subjects, each run in a process of its own, and their workload.

Prompts are token ids drawn with a fixed seed from the ordinary part of the vocabulary. Every prompt
is new unless a prefix is meant to be shared.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

FIRST_ORDINARY_TOKEN_ID = 100
LAST_ORDINARY_TOKEN_ID = 20_000

DECODE_CONCURRENCIES = (1, 4, 8, 32)
DECODE_PROMPT_TOKENS = 16
DECODE_OUTPUT_TOKENS = 64
PREFILL_LENGTHS = (512, 4096)
PREFIX_TOKENS = 4096
CARD_KV_BYTES = 2 * 10**9
"""A card's other memory is for the other subjects."""


def prompts_of(seed: int, num_prompts: int, num_tokens: int) -> list[list[int]]:
    """The same seed gives every subject the same prompts."""
    generator = random.Random(seed)
    ordinary = range(FIRST_ORDINARY_TOKEN_ID, LAST_ORDINARY_TOKEN_ID + 1)
    return [generator.choices(ordinary, k=num_tokens) for _ in range(num_prompts)]


def tokens_per_s_together(streams: Iterable[Sequence[float]]) -> float:
    """Aggregate output tok/s while every stream was decoding.

    ``streams`` has, for each sequence, the clock reading in seconds of each of its tokens, in
    order. Counted are the tokens after the last stream's first and up to the first stream's last:
    no prompt is in that time, and the batch is full throughout.

        stream a   |--x--x--x--x--x
        stream b   |--------x--x--x--x--x
        counted             (        ]
    """
    arrivals = list(streams)
    started = max(times[0] for times in arrivals)
    ended = min(times[-1] for times in arrivals)
    if ended <= started:
        raise ValueError("the streams were never decoding together")
    num_tokens = sum(started < time <= ended for times in arrivals for time in times)
    return num_tokens / (ended - started)
