"""The filters that every template has: times, and landmarks for screen readers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import count

from django import template
from django.utils.safestring import SafeString, mark_safe

ICON = re.compile(r'<span(?=[^>]*\bclass="[^"]*\bmaterial-symbols-outlined\b)(?![^>]*aria-hidden)')
MAIN = '<div id="main"'
SEARCH_BUTTON = 'id="searchbar-submit"'
MENU_OF_ACTIONS = "x-on:click='showActions = !showActions'"
COLUMN_OF_DELETIONS = re.compile(r'(<th class="[^"]*\blg:w-px\b[^"]*">)\s*(?=</th>)')
SCROLLED = re.compile(r"\bdata-simplebar(?=[\s>])")
"""A part that scrolls: its script makes it a region, each with the same name by itself."""

register = template.Library()


@register.filter
def with_landmarks(html: SafeString) -> SafeString:
    """``helexa/pages.js`` marks what scripts add later."""
    numbers = count(1)
    marked = ICON.sub('<span aria-hidden="true"', html)
    marked = marked.replace(MAIN, f'{MAIN} role="main" tabindex="-1"', 1)
    marked = marked.replace(SEARCH_BUTTON, f'{SEARCH_BUTTON} aria-label="Search"')
    marked = marked.replace(
        MENU_OF_ACTIONS, f'{MENU_OF_ACTIONS} role="button" aria-label="Actions"'
    )
    marked = COLUMN_OF_DELETIONS.sub(r'\1<span class="hx-hidden">Remove</span>', marked)
    marked = SCROLLED.sub(
        lambda found: f'{found[0]} data-simplebar-aria-label="Part {next(numbers)} that scrolls"',
        marked,
    )
    return mark_safe(marked)


@register.filter("moment")
def moment_text(moment: datetime | None) -> str:
    """The one format of times on pages. ``moment`` is aware of its zone."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
