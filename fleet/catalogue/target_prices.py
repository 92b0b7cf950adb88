"""The prices of one target, written behind it in USD per million. Pure.

    cloud/llama when waiting_longer_than 10 input_price 0.5 output_price 2
    cloud/whisper-1 unit_price 100
    router/llama upstream_prices

A target without prices of its own has the model's.
"""

from __future__ import annotations

from dataclasses import dataclass

from metering.money import micro_usd_of
from metering.prices import MAX_PRICE_MICRO_USD, Prices, UnitPrices

OF_TOKENS = ("input_price", "output_price")
CACHED_INPUT = "cached_input_price"
OF_UNITS = ("request_price", "unit_price")
OF_UPSTREAM = "upstream_prices"
"""The prices that the upstream names of its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPrices:
    prices: Prices | None = None
    """Prices of tokens; ``None``: none are named."""
    units: UnitPrices | None = None
    """Prices of requests and units; ``None``: none are named."""
    are_upstreams: bool = False
    """The prices that the upstream last named hold, and no others are here."""


def parse_prices(words: list[str]) -> tuple[TargetPrices | None, list[str]]:
    """Returns the prices that the words begin with, and the rest of them. Raises ``ValueError``."""
    if words[:1] == [OF_UPSTREAM]:
        return TargetPrices(are_upstreams=True), words[1:]
    named: dict[str, int] = {}
    while words and words[0] in (*OF_TOKENS, CACHED_INPUT, *OF_UNITS):
        name, amount = words[0], words[1:2]
        if name in named:
            raise ValueError(f"{name} is named twice")
        named[name] = _price(name, amount[0] if amount else "")
        words = words[2:]
    if not named:
        return None, words
    return TargetPrices(prices=_of_tokens(named), units=_of_units(named)), words


def _price(name: str, text: str) -> int:
    try:
        micro_usd = micro_usd_of(text)
    except ValueError as error:
        raise ValueError(f"{name} is in USD per million: {error}") from None
    if micro_usd > MAX_PRICE_MICRO_USD:
        raise ValueError(f"{name} is at most 999,999,999.999999 USD")
    return micro_usd


def _of_tokens(named: dict[str, int]) -> Prices | None:
    if not named.keys() & {*OF_TOKENS, CACHED_INPUT}:
        return None
    for name in OF_TOKENS:
        if name not in named:
            raise ValueError(f"{' and '.join(OF_TOKENS)} are named together; {name} is missing")
    input_micro_usd = named["input_price"]
    return Prices(
        input_micro_usd=input_micro_usd,
        cached_input_micro_usd=named.get(CACHED_INPUT, input_micro_usd),
        output_micro_usd=named["output_price"],
    )


def _of_units(named: dict[str, int]) -> UnitPrices | None:
    if not named.keys() & {*OF_UNITS}:
        return None
    return UnitPrices(
        request_micro_usd=named.get("request_price", 0),
        unit_micro_usd=named.get("unit_price", 0),
    )
