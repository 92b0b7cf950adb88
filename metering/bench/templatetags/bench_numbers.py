"""Numbers for the bench's pages."""

from __future__ import annotations

from urllib.parse import urlencode

from django import template

from metering.bench.comparison import Difference, Spread
from metering.bench.report import number_text, spread_text

register = template.Library()


@register.filter
def number(value: float | None) -> str:
    return "" if value is None else number_text(value)


@register.filter
def ratio(difference: Difference) -> str:
    return "" if difference.ratio is None else f"{difference.ratio:.3f}"


@register.filter
def spread(value: Spread) -> str:
    return spread_text(value)


@register.simple_tag
def querystring_of(**words: str) -> str:
    return urlencode(words)
