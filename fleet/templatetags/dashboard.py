"""Sizes, counts and addresses, as filters of templates."""

from __future__ import annotations

from django import template

from fleet.dashboard.links import model_url, neuron_url
from fleet.dashboard.words import count_words, tone_of
from fleet.management.sizes import size_text
from fleet.overview.lines import AuditLine
from metering.pages import audited_url

register = template.Library()
register.filter("tone", tone_of)
register.filter("model_url", model_url)
register.filter("neuron_url", neuron_url)
register.filter("size", size_text)
register.filter("count", count_words)


@register.filter("audited_url")
def url_of_line(line: AuditLine) -> str:
    """Empty: it has no page."""
    return audited_url(line.action, line.object_id)
