"""Numbers as the bench's pages write them."""

from __future__ import annotations

from urllib.parse import urlencode

from django import template

from metering.bench.results.comparison import Difference
from metering.bench.results.report import interval_text, number_text

register = template.Library()


@register.filter
def number(value: float | None) -> str:
    return "" if value is None else number_text(value)


@register.filter
def ratio(difference: Difference) -> str:
    return f"{difference.ratio.estimate:.3f}" if difference.ratio else ""


@register.filter
def interval(difference: Difference) -> str:
    return interval_text(difference.ratio) if difference.ratio else ""


@register.simple_tag
def querystring_of(**words: str) -> str:
    return urlencode(words)
