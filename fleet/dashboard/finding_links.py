"""Findings, each with a link to the page with details. Pure, but for the pages' addresses."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from django.urls import reverse

from fleet.dashboard.links import model_url, neuron_url
from fleet.dashboard.rows import FindingRow
from fleet.dashboard.words import tone_of
from fleet.overview import Attention

NEURONS = ("admin:fleet_neuron_changelist", "neurons")
MODELS = ("admin:fleet_cataloguemodel_changelist", "catalogue")
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
    "too_few_replicas": MODELS,
    "no_host": MODELS,
    "budget_spent": ACCOUNTS,
    "budget_nearly_spent": ACCOUNTS,
    "account_refused": ACCOUNTS,
    "key_breaks_workers": ACCOUNTS,
}
"""Kind of finding -> the URL's name and the link's text."""
FILTERS = {
    "neuron_away": "?status__exact=away",
    "neuron_refused": "?status__exact=refused",
    "model_failing": "?status__exact=failed",
}
"""Kind of finding -> the rows of its page that it counts, where it stands for many."""
OF_A_NEURON = frozenset({"neuron_away", "neuron_refused", "neuron_problem"})
OF_A_MODEL = frozenset({"model_failing", "outdated", "too_few_replicas", "no_host"})


def finding_rows(attention: Iterable[Attention]) -> tuple[FindingRow, ...]:
    return tuple(map(_finding_row, attention))


def _finding_row(finding: Attention) -> FindingRow:
    url, page = _target(finding)
    return FindingRow(
        level=finding.level.value,
        tone=tone_of(finding.level.value),
        kind=finding.kind,
        about=finding.about,
        text=finding.text,
        url=url,
        page=page,
    )


def _target(finding: Attention) -> tuple[str, str]:
    """The address and the link's text. One about a model or a neuron leads to its page."""
    if finding.about and finding.kind in OF_A_NEURON:
        return neuron_url(finding.about), "its page"
    if finding.about and finding.kind in OF_A_MODEL:
        return model_url(finding.about), "its page"
    url_name, page = PAGES.get(finding.kind, ("", ""))
    if not url_name:
        return "", ""
    return _address(url_name) + ("" if finding.about else FILTERS.get(finding.kind, "")), page


@cache
def _address(url_name: str) -> str:
    """A fleet whose models all fail has a thousand findings."""
    return reverse(url_name)
