"""Addresses of the Requests page with its filters, for pages that name an account or a count."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse


def requests_url(**words: object) -> str:
    """``words``: filters by name; empty ones are left out."""
    query = urlencode({name: word for name, word in words.items() if word})
    return f"{reverse('requests')}?{query}" if query else reverse("requests")
