"""What a scripted engine remembers of prompts: a prefix cache of so many tokens.

Whole blocks of a prompt count as found; its last token never does, because a model computes it for
the answer's first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

BLOCK_TOKENS = 16
MAX_PROMPTS = 64


class PromptCache:
    """Prompts by least recent use. A prompt that a later one continues is part of that."""

    def __init__(self, max_tokens: int | None = None) -> None:
        """``None``: as many as ``MAX_PROMPTS``, however long."""
        self._max_tokens = max_tokens
        self._prompts: list[Sequence[int]] = []

    def read(self, token_ids: Sequence[int]) -> int:
        """How many of its first tokens were there. From now on the whole prompt is."""
        shared = [_num_shared(token_ids, known) for known in self._prompts]
        known = zip(self._prompts, shared, strict=True)
        self._prompts = [prompt for prompt, num in known if num < len(prompt)]
        self._prompts.append(token_ids)
        while self._is_over():
            self._prompts.pop(0)
        return min(max(shared, default=0), len(token_ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    def _is_over(self) -> bool:
        if self._max_tokens is None:
            return len(self._prompts) > MAX_PROMPTS
        return sum(map(len, self._prompts)) > self._max_tokens


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
