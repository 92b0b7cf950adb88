"""Findings, each with a link to the page with details. Pure, but for the pages' addresses."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from urllib.parse import urlencode

from django.urls import reverse

from fleet.dashboard.rows import FindingRow
from fleet.dashboard.words import tone_of
from fleet.overview import Attention

NEURONS = ("admin:fleet_neuron_changelist", "neurons")
REPLICAS = ("admin:fleet_replica_changelist", "replicas")
ACCOUNTS = ("usage-accounts", "accounts")
PAGES = {
    "no_neuron": ("admin:fleet_invitation_add", "invite a host"),
    "neuron_away": NEURONS,
    "neuron_refused": NEURONS,
    "neuron_problem": NEURONS,
    "version_mismatch": NEURONS,
    "disk_nearly_full": ("admin:fleet_download_cached", "what it has downloaded"),
    "model_failing": REPLICAS,
    "outdated": REPLICAS,
    "too_few_replicas": ("admin:fleet_cataloguemodel_changelist", "catalogue"),
    "budget_spent": ACCOUNTS,
    "budget_nearly_spent": ACCOUNTS,
    "account_refused": ACCOUNTS,
    "key_breaks_workers": ACCOUNTS,
}
"""Kind of finding -> the URL's name and the link's text."""
SEARCHED = frozenset({"model_failing", "outdated", "too_few_replicas"})
"""The page is a list that is searched for what the finding is about."""


def finding_rows(attention: Iterable[Attention]) -> tuple[FindingRow, ...]:
    return tuple(map(_finding_row, attention))


def _finding_row(finding: Attention) -> FindingRow:
    url_name, page = PAGES.get(finding.kind, ("", ""))
    query = f"?{urlencode({'q': finding.about})}" if finding.kind in SEARCHED else ""
    return FindingRow(
        level=finding.level.value,
        tone=tone_of(finding.level.value),
        kind=finding.kind,
        about=finding.about,
        text=finding.text,
        url=_address(url_name) + query if url_name else "",
        page=page,
    )


@cache
def _address(url_name: str) -> str:
    """A fleet whose models all fail has a thousand findings."""
    return reverse(url_name)
