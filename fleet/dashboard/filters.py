"""Sizes, counts, tones and addresses, as filters of templates."""

from __future__ import annotations

from django import template

from fleet.dashboard.links import model_url, neuron_url
from fleet.overview_lines import AuditLine
from fleet.words import count_words, size_text
from metering.links import audited_url

TONES = {
    "ready": "good",
    "online": "good",
    "loading": "info",
    "recovering": "warning",
    "draining": "warning",
    "asleep": "quiet",
    "failed": "bad",
    "away": "bad",
    "refused": "quiet",
    "unloaded": "quiet",
    "urgent": "bad",
    "warning": "warning",
    "notice": "info",
}

register = template.Library()
register.filter("model_url", model_url)
register.filter("neuron_url", neuron_url)
register.filter("size", size_text)
register.filter("count", count_words)


@register.filter("tone")
def tone_of(status: str) -> str:
    return TONES.get(status, "quiet")


@register.filter("audited_url")
def url_of_line(line: AuditLine) -> str:
    """Empty: it has no page."""
    return audited_url(line.action, line.object_id)
