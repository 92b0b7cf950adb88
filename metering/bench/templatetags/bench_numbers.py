"""Numbers for the bench's pages."""

from __future__ import annotations

from django import template

from metering.bench.measures import number_text

register = template.Library()


@register.filter
def number(value: float | None) -> str:
    return "" if value is None else number_text(value)
