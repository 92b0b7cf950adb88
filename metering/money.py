"""Money: US dollars as text for people, micro-USD inside. Pure; never a float."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

MICRO_USD_PER_USD = 1_000_000
MICRO_USD_PER_CENT = 10_000
MICRO_USD = "micro_usd"
"""The unit of budgets in money; the other is ``tokens``."""
MAX_USD = Decimal(9_000_000_000)
"""The largest amount: in micro-USD it still fits a signed 64-bit integer."""


def micro_usd_of(text: str) -> int:
    """Converts "12.50" or "$0.0123" to micro-USD. Raises ``ValueError`` with a message for
    people."""
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
    """An amount spent: ``$1,234.57``, to the cent. Less than a cent is printed exactly."""
    if micro_usd < MICRO_USD_PER_CENT:
        return usd_text(micro_usd)
    cents = (micro_usd + MICRO_USD_PER_CENT // 2) // MICRO_USD_PER_CENT
    return f"${cents // 100:,}.{cents % 100:02d}"


def usd_digits(micro_usd: int) -> str:
    return usd_text(micro_usd).replace("$", "").replace(",", "")


def amount_text(unit: str, amount: int) -> str:
    return usd_text(amount) if unit == MICRO_USD else f"{amount:,}"


def amount_words(unit: str, amount: int) -> str:
    """``$12.50``, or ``1,000 tokens``."""
    return usd_text(amount) if unit == MICRO_USD else f"{amount:,} tokens"


def cap_of(unit: str, word: str) -> int:
    """A budget's cap from a person's text: dollars, or whole tokens. Raises ``ValueError`` with a
    message for people."""
    if unit == MICRO_USD:
        return micro_usd_of(word)
    if not (word.isascii() and word.isdigit() and len(word) < 20):
        raise ValueError(f"{word!r} is not a whole number of tokens")
    return int(word)
