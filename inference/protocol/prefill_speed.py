"""How long a prompt takes on one device, as a formula that holds at any length.

A token costs ``token_s`` for its own products and ``growth_s`` for each token before it, which its
attention reads; with a sliding window it reads no more than that many. So n tokens take

    token_s * n + growth_s * n² / 2                             up to the window, and
    token_s * n + growth_s * (w² / 2 + w * (n - w))             beyond it.
"""

from __future__ import annotations

import bisect

import msgspec


class PrefillSpeed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Measured in steps of the size that the engine runs beside others, the device to itself."""

    token_s: float
    growth_s: float = 0.0
    window_tokens: int | None = None

    def span_s(self, start: int, end: int) -> float:
        """What tokens ``[start, end)`` of a prompt take, those before them being in blocks."""
        return self.prompt_s(end) - self.prompt_s(start)

    def prompt_s(self, num_tokens: int) -> float:
        inside = min(num_tokens, self.window_tokens or num_tokens)
        tokens_read = inside * inside / 2 + inside * (num_tokens - inside)
        return self.token_s * num_tokens + self.growth_s * tokens_read

    def longest_prompt(self, seconds: float, at_most: int) -> int:
        """Tokens, 0 … ``at_most``, that take no longer than ``seconds``."""
        return max(0, bisect.bisect_right(range(at_most + 1), seconds, key=self.prompt_s) - 1)

    def tokens_per_s(self, num_tokens: int) -> float:
        """Average over a prompt of that length."""
        return num_tokens / self.prompt_s(num_tokens)

    def slowed(self, factor: float) -> PrefillSpeed:
        """Everything takes ``factor`` times as long."""
        return PrefillSpeed(
            token_s=self.token_s * factor,
            growth_s=self.growth_s * factor,
            window_tokens=self.window_tokens,
        )
