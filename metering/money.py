"""Money between people and integers: US dollars as text, micro-USD inside. Pure; never a float."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

MICRO_USD_PER_USD = 1_000_000
MAX_USD = Decimal(9_000_000_000)
"""In micro-USD it still fits a signed 64-bit integer."""


def micro_usd_of(text: str) -> int:
    """From "12.50" or "$0.0123". Raises ``ValueError`` with a message for people."""
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
