"""A model's targets: where its requests go, in the operator's order, and at which prices. Pure.

    own when ready
    gpu-box/llama-3.3-70b when queue_longer_than 4 weight 2
    cloud/llama when waiting_longer_than 10 input_price 0.5 output_price 2
    cloud/whisper-1 unit_price 100
    router/llama upstream_prices

``own`` is this fleet's replicas, ``UPSTREAM/MODEL`` an upstream's model. Prices are in USD per
million; a target without prices of its own has the model's. Which target a request goes to is
``fleet.placement.targets``'.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from metering.money import MAX_PRICE_MICRO_USD, Prices, UnitPrices, micro_usd_of

UPSTREAM_PREFIX = "upstream:"
OWN = "own"
MAX_TARGETS = 8
MAX_CHARACTERS = 500
MAX_WEIGHT = 1_000
UPSTREAM_MODEL = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*/[^\s,\x00-\x1f\x7f]+")
EXAMPLE = "own when ready, or gpu-box/llama-3.3-70b when queue_longer_than 4 weight 2"

OF_TOKENS = ("input_price", "output_price")
CACHED_INPUT = "cached_input_price"
OF_UNITS = ("request_price", "unit_price")
OF_UPSTREAM = "upstream_prices"


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """``model``: the upstream's own name, which may hold slashes."""

    upstream: str
    model: str


def upstream_of(source: str) -> UpstreamModel | None:
    if not source.startswith(UPSTREAM_PREFIX):
        return None
    upstream, _, model = source.removeprefix(UPSTREAM_PREFIX).partition("/")
    return UpstreamModel(upstream, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPrices:
    prices: Prices | None = None
    units: UnitPrices | None = None
    are_upstreams: bool = False
    """The prices are those that the upstream last named."""


class When(StrEnum):
    """When requests go to a target. Numbers are counted over the targets before it."""

    ALWAYS = "always"
    READY = "ready"
    """The target can begin a request at once, without loading or waiting."""
    QUEUE_LONGER_THAN = "queue_longer_than"
    """More requests than that wait at each target before it."""
    WAITING_LONGER_THAN = "waiting_longer_than"


MOST = {When.QUEUE_LONGER_THAN: 1_000_000, When.WAITING_LONGER_THAN: 86_400}
SPILLS = frozenset(MOST)
"""Conditions that move a target before those ahead of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    upstream_model: UpstreamModel | None
    """``None``: this fleet's replicas."""
    when: When = When.ALWAYS
    limit: int = 0
    """Requests or seconds; 0: the condition has none."""
    weight: int | None = None
    """Neighbours with a weight and one condition share their requests by it."""
    prices: TargetPrices | None = None
    """``None``: the model's prices."""

    @property
    def is_own(self) -> bool:
        return self.upstream_model is None

    @property
    def name(self) -> str:
        served = self.upstream_model
        return OWN if served is None else f"{served.upstream}/{served.model}"


class TargetError(ValueError):
    """The message is for users."""


def parse_target(text: str) -> Target:
    """Raises ``TargetError``."""
    words = text.split()
    if len(text) > MAX_CHARACTERS or not words:
        raise TargetError(f"A target is written as {EXAMPLE}; this is {text[:100]!r}")
    served, rest = _upstream_model(words[0]), words[1:]
    when, limit, rest = _condition(rest, text)
    weight = None
    if rest[:1] == ["weight"]:
        weight, rest = _number(rest[1:2], "weight", 1, MAX_WEIGHT), rest[2:]
    try:
        prices, rest = _prices(rest)
    except ValueError as error:
        raise TargetError(f"{text!r}: {error}") from None
    if rest:
        raise TargetError(f"{text!r}: {' '.join(rest)!r} is not understood; as {EXAMPLE}")
    if prices is not None and served is None:
        raise TargetError(f"{text!r}: the prices of {OWN} are the model's")
    return Target(upstream_model=served, when=when, limit=limit, weight=weight, prices=prices)


@lru_cache(maxsize=1024)
def parse_targets(texts: tuple[str, ...]) -> tuple[Target, ...]:
    """Raises ``TargetError``."""
    return tuple(map(parse_target, texts))


def targets_problem(texts: Sequence[str]) -> str | None:
    if len(texts) > MAX_TARGETS:
        return f"A model has at most {MAX_TARGETS} targets; these are {len(texts)}"
    try:
        targets = parse_targets(tuple(texts))
    except TargetError as error:
        return str(error)
    if len({(one.name, one.when, one.limit) for one in targets}) < len(targets):
        return "A target is named once under each condition"
    prices = {one.name: one.prices for one in targets}
    other = next((one.name for one in targets if one.prices != prices[one.name]), None)
    return None if other is None else f"{other} has the same prices wherever it is named"


def _upstream_model(name: str) -> UpstreamModel | None:
    if name == OWN:
        return None
    if name.startswith(UPSTREAM_PREFIX):
        raise TargetError(f"A target is written without upstream:, as {name.partition(':')[2]}")
    if not UPSTREAM_MODEL.fullmatch(name):
        raise TargetError(f"{name!r} is neither {OWN} nor UPSTREAM/MODEL, as in gpu-box/llama")
    return upstream_of(UPSTREAM_PREFIX + name)


def _condition(words: list[str], text: str) -> tuple[When, int, list[str]]:
    if words[:1] != ["when"]:
        return When.ALWAYS, 0, words
    try:
        when = When(words[1] if len(words) > 1 else "")
    except ValueError:
        known = ", ".join(one if one not in SPILLS else f"{one} N" for one in When)
        raise TargetError(f"{text!r}: a condition is one of {known}") from None
    if when not in SPILLS:
        return when, 0, words[2:]
    least = 1 if when is When.WAITING_LONGER_THAN else 0
    return when, _number(words[2:3], when, least, MOST[when]), words[3:]


def _number(words: list[str], name: str, least: int, most: int) -> int:
    text = words[0] if words else ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not least <= number <= most:
        raise TargetError(f"{name} has a whole number from {least} to {most:,}, not {text!r}")
    return number


def _prices(words: list[str]) -> tuple[TargetPrices | None, list[str]]:
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
    missing = [name for name in OF_TOKENS if name not in named]
    if missing and named.keys() & {*OF_TOKENS, CACHED_INPUT}:
        raise ValueError(f"{' and '.join(OF_TOKENS)} are named together; {missing[0]} is missing")
    prices = Prices.named(
        input=named.get("input_price"),
        cached_input=named.get(CACHED_INPUT),
        output=named.get("output_price"),
    )
    units = UnitPrices(
        request_micro_usd=named.get("request_price", 0), unit_micro_usd=named.get("unit_price", 0)
    )
    if not named.keys() & {*OF_UNITS}:
        return TargetPrices(prices=prices), words
    return TargetPrices(prices=prices, units=units), words


def _price(name: str, text: str) -> int:
    try:
        micro_usd = micro_usd_of(text)
    except ValueError as error:
        raise ValueError(f"{name} is in USD per million: {error}") from None
    if micro_usd > MAX_PRICE_MICRO_USD:
        raise ValueError(f"{name} is at most 999,999,999.999999 USD")
    return micro_usd
