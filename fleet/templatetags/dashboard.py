"""Sizes and counts in words, as filters of templates."""

from __future__ import annotations

from django import template

from fleet.dashboard.words import count_words
from fleet.management.sizes import size_text

register = template.Library()
register.filter("size", size_text)
register.filter("count", count_words)
