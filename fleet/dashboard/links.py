"""Addresses of the pages of models and neurons, by name, and of those that findings are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote

from django.urls import reverse

if TYPE_CHECKING:
    from fleet.overview_lines import Attention


def model_url(name: str) -> str:
    return f"{reverse('model-page')}?name={quote(name, safe='')}"


def neuron_url(name: str) -> str:
    return f"{reverse('neuron-page')}?name={quote(name, safe='')}"


ACCOUNTS = ("usage-accounts", "accounts")
PAGES = {
    "no_neuron": ("admin:fleet_invitation_add", "invite a host"),
    "version_mismatch": ("admin:fleet_neuron_changelist", "neurons"),
    "disk_nearly_full": ("admin:fleet_download_cached", "what it has downloaded"),
    "budget_spent": ACCOUNTS,
    "budget_nearly_spent": ACCOUNTS,
    "account_refused": ACCOUNTS,
    "key_breaks_workers": ACCOUNTS,
}
"""The URL's name and the link's text, by kind."""
PAGES_OF_OBJECTS: dict[str, Callable[[str], str]] = {
    "neuron_away": neuron_url,
    "neuron_refused": neuron_url,
    "neuron_problem": neuron_url,
    "model_failing": model_url,
    "outdated": model_url,
    "too_few_replicas": model_url,
    "no_host": model_url,
}


def linked_findings(attention: Iterable[Attention]) -> list[tuple[Attention, str, str]]:
    return [(finding, *_page(finding)) for finding in attention]


def _page(finding: Attention) -> tuple[str, str]:
    if finding.kind in PAGES_OF_OBJECTS:
        return PAGES_OF_OBJECTS[finding.kind](finding.about), "its page"
    url_name, words = PAGES.get(finding.kind, ("", ""))
    return (reverse(url_name), words) if url_name else ("", "")
