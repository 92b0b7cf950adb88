"""How many tokens a model makes of a prompt of so many bytes, learned from those it has counted.

The sure bound of a prompt is its bytes, some four times what most texts take. What is reserved for
a prompt is nearer: the largest share of tokens in bytes that this model's prompts of about this
size had, and a margin. A prompt that has more is refused by its neuron before anything is
computed, with its length, and is reserved anew by that. Pure.
"""

from __future__ import annotations

import math

FIRST_SHARE = 0.5
"""While no prompt of the size was counted: text has a token in three to four bytes."""
LEAST_SHARE = 0.25
"""Short prompts differ much from one another."""
MARGIN = 1.25
FORGETTING = 1 / 64
"""How far the share moves towards each smaller one that is seen."""


class PromptRatios:
    """By model and by size in powers of two: of short prompts the template is the largest part."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int], float] = {}

    def near(self, model: str, text_bound: int) -> int:
        """The tokens to reserve for a text whose sure bound is ``text_bound``, never more."""
        share = self._shares.get((model, text_bound.bit_length()))
        share = FIRST_SHARE if share is None else max(LEAST_SHARE, share * MARGIN)
        return min(text_bound, math.ceil(text_bound * share))

    def observe(self, model: str, text_bound: int, num_tokens: int) -> None:
        if text_bound <= 0:
            return
        size = (model, text_bound.bit_length())
        seen = max(0, num_tokens) / text_bound
        share = self._shares.get(size, 0.0)
        self._shares[size] = seen if seen >= share else share + (seen - share) * FORGETTING
