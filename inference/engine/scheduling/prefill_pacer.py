"""How many prompt tokens a step may take, so that a step stays short on any machine.

A cancel is obeyed between steps, and sequences that decode wait for the prompt chunk beside them:
both want steps of a tenth of a second, whatever that is in tokens here and now.
"""

from __future__ import annotations

SMALLEST_CHUNK = 32
"""Below this a projection's weights are read for too few rows to be worth it."""


class PrefillPacer:
    """Between ``SMALLEST_CHUNK`` and ``max_tokens``, moved half-way to what the last chunk's speed
    suggests. ``target_s`` ``None``: always ``max_tokens``."""

    def __init__(self, max_tokens: int, target_s: float | None) -> None:
        self._max_tokens = max_tokens
        self._target_s = target_s
        start = max_tokens if target_s is None else max_tokens // 4
        self.num_tokens = self._bounded(start)

    def record(self, *, num_prefill_tokens: int, step_s: float) -> None:
        """Small remainders say little of speed and are passed over."""
        if self._target_s is None or num_prefill_tokens < SMALLEST_CHUNK or step_s <= 0:
            return
        suggested = num_prefill_tokens / step_s * self._target_s
        self.num_tokens = self._bounded(int((self.num_tokens + suggested) / 2))

    def _bounded(self, num_tokens: int) -> int:
        return min(max(num_tokens, SMALLEST_CHUNK), self._max_tokens)
