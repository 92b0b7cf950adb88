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

    def less(self, percent: int) -> Prices:
        """Each rounded up, so that nothing that has a price becomes free but by all of it."""
        if percent == 0:
            return self

        def part(price: int) -> int:
            return -(-price * (100 - percent) // 100)

        return Prices(
            input_micro_usd=part(self.input_micro_usd),
            cached_input_micro_usd=part(self.cached_input_micro_usd),
            output_micro_usd=part(self.output_micro_usd),
        )

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

    def affordable_output_tokens(self, *, micro_usd: int, prompt_tokens: int) -> int | None:
        """How many output tokens ``micro_usd`` buys beside the prompt at its dearest: the largest
        number for which ``most_micro_usd`` is no more. Negative where the prompt alone is dearer;
        ``None``: any number, because they are free."""
        dearest = max(self.input_micro_usd, self.cached_input_micro_usd)
        left = micro_usd * TOKENS_PER_PRICE - prompt_tokens * dearest
        if left < 0:
            return -1
        return left // self.output_micro_usd if self.output_micro_usd else None


FREE = Prices()
