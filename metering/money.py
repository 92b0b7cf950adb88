"""Money: prices and costs of requests, and US dollars as text for people. Pure integers, never a
float: micro-USD, and micro-USD per million tokens or units."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

TOKENS_PER_PRICE = 1_000_000
MAX_PRICE_MICRO_USD = 10**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Micro-USD per million tokens. Zero is free."""

    input_micro_usd: int = 0
    cached_input_micro_usd: int = 0
    output_micro_usd: int = 0

    @classmethod
    def named(
        cls, *, input: int | None, cached_input: int | None, output: int | None
    ) -> Prices | None:
        """``None`` without a price of the prompt or of the answer. Cached tokens cost as others do
        unless theirs is given."""
        if input is None or output is None:
            return None
        return cls(
            input_micro_usd=input,
            cached_input_micro_usd=input if cached_input is None else cached_input,
            output_micro_usd=output,
        )

    def less(self, percent: int) -> Prices:
        """Each rounded up, so that a discount below 100 % makes no price zero."""
        if percent == 0:
            return self
        return Prices(
            input_micro_usd=_less(self.input_micro_usd, percent),
            cached_input_micro_usd=_less(self.cached_input_micro_usd, percent),
            output_micro_usd=_less(self.output_micro_usd, percent),
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
        """An upper bound of the cost, whatever the prefix cache holds."""
        dearest = max(self.input_micro_usd, self.cached_input_micro_usd)
        total = prompt_tokens * dearest + completion_tokens * self.output_micro_usd
        return -(-total // TOKENS_PER_PRICE)

    def affordable_output_tokens(self, *, micro_usd: int, prompt_tokens: int) -> int | None:
        """The largest number for which ``most_micro_usd`` is no more. Negative where the prompt
        alone costs more; ``None``: any number, because they are free."""
        dearest = max(self.input_micro_usd, self.cached_input_micro_usd)
        left = micro_usd * TOKENS_PER_PRICE - prompt_tokens * dearest
        if left < 0:
            return -1
        return left // self.output_micro_usd if self.output_micro_usd else None


FREE = Prices()


@dataclass(frozen=True, slots=True)
class DearestPrices:
    """Several prices of which one will hold: a reservation covers each of them."""

    each: tuple[Prices, ...]

    def most_micro_usd(self, *, prompt_tokens: int, completion_tokens: int) -> int:
        return max(
            one.most_micro_usd(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
            for one in self.each
        )

    def affordable_output_tokens(self, *, micro_usd: int, prompt_tokens: int) -> int | None:
        bought = (
            one.affordable_output_tokens(micro_usd=micro_usd, prompt_tokens=prompt_tokens)
            for one in self.each
        )
        return min((tokens for tokens in bought if tokens is not None), default=None)


def highest(prices: Collection[Prices]) -> Prices:
    return Prices(
        input_micro_usd=max(one.input_micro_usd for one in prices),
        cached_input_micro_usd=max(one.cached_input_micro_usd for one in prices),
        output_micro_usd=max(one.output_micro_usd for one in prices),
    )


Unit = Literal["", "request", "second", "character", "image"]
"""The unit of a request without tokens; empty: it has tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    unit: Unit = ""
    num_units: int = 0
    micro_usd: int = 0


NOT_METERED = Metered()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPrices:
    """Micro-USD per million requests, and per million units."""

    request_micro_usd: int = 0
    unit_micro_usd: int = 0

    def less(self, percent: int) -> UnitPrices:
        return UnitPrices(
            request_micro_usd=_less(self.request_micro_usd, percent),
            unit_micro_usd=_less(self.unit_micro_usd, percent),
        )

    def metered(self, unit: Unit, num_units: int) -> Metered:
        """Rounded up to a whole micro-USD."""
        total = self.request_micro_usd + num_units * self.unit_micro_usd
        return Metered(unit=unit, num_units=num_units, micro_usd=-(-total // TOKENS_PER_PRICE))


def _less(price: int, percent: int) -> int:
    return -(-price * (100 - percent) // 100)


MICRO_USD_PER_USD = 1_000_000
MICRO_USD_PER_CENT = 10_000
MICRO_USD = "micro_usd"
MAX_USD = Decimal(9_000_000_000)
"""The largest amount: in micro-USD it still fits a signed 64-bit integer."""


def micro_usd_of(text: str) -> int:
    """Reads "12.50" or "$0.0123". Raises ``ValueError`` with a message for people."""
    word = text.strip().removeprefix("$")
    try:
        usd = Decimal(word)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount of US dollars, as in 12.50") from None
    if not usd.is_finite() or usd < 0 or usd > MAX_USD:
        raise ValueError(f"{text!r} is not between 0 and {MAX_USD} US dollars")
    micro_usd = usd * MICRO_USD_PER_USD
    if micro_usd != int(micro_usd):
        raise ValueError(f"{text!r} has more than six decimals")
    return int(micro_usd)


def usd_text(micro_usd: int) -> str:
    """``$0.0123``: at least two decimals, and no zeros after them."""
    usd, rest = divmod(abs(micro_usd), MICRO_USD_PER_USD)
    decimals = f"{rest:06d}"
    shown = decimals[:2] + decimals[2:].rstrip("0")
    sign = "-" if micro_usd < 0 else ""
    return f"{sign}${usd:,}.{shown}"


def cost_text(micro_usd: int) -> str:
    """``$1,234.57``, to the cent; less than a cent is printed exactly."""
    if micro_usd < MICRO_USD_PER_CENT:
        return usd_text(micro_usd)
    cents = (micro_usd + MICRO_USD_PER_CENT // 2) // MICRO_USD_PER_CENT
    return f"${cents // 100:,}.{cents % 100:02d}"


def usd_digits(micro_usd: int) -> str:
    return usd_text(micro_usd).replace("$", "").replace(",", "")


def amount_text(unit: str, amount: int) -> str:
    return usd_text(amount) if unit == MICRO_USD else f"{amount:,}"


def amount_words(unit: str, amount: int) -> str:
    return usd_text(amount) if unit == MICRO_USD else f"{amount:,} tokens"


def cap_of(unit: str, word: str) -> int:
    """``word``: dollars, or whole tokens. Raises ``ValueError`` with a message for people."""
    if unit == MICRO_USD:
        return micro_usd_of(word)
    if not (word.isascii() and word.isdigit() and len(word) < 20):
        raise ValueError(f"{word!r} is not a whole number of tokens")
    return int(word)
