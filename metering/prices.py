"""What tokens cost. Pure integers: micro-USD, and micro-USD per million tokens."""

from __future__ import annotations

from dataclasses import dataclass

TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Micro-USD per million tokens. Zero is free."""

    input_micro_usd: int = 0
    cached_input_micro_usd: int = 0
    output_micro_usd: int = 0

    def cost_micro_usd(
        self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int
    ) -> int:
        """Rounded up to a whole micro-USD, once per request."""
        total = (
            (prompt_tokens - cached_tokens) * self.input_micro_usd
            + cached_tokens * self.cached_input_micro_usd
            + completion_tokens * self.output_micro_usd
        )
        return -(-total // TOKENS_PER_PRICE)

    def most_micro_usd(self, *, prompt_tokens: int, completion_tokens: int) -> int:
        """What so many tokens can cost at most, whatever the prefix cache holds."""
        dearest = max(self.input_micro_usd, self.cached_input_micro_usd)
        total = prompt_tokens * dearest + completion_tokens * self.output_micro_usd
        return -(-total // TOKENS_PER_PRICE)


FREE = Prices()
