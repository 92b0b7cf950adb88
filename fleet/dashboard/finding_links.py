"""Findings with links to their pages, many of one kind as one line. Pure, but for the addresses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from django.urls import reverse

from fleet.dashboard.links import model_url, neuron_url
from fleet.dashboard.rows import FindingRow
from fleet.dashboard.words import tone_of
from fleet.overview import Attention

MAX_ALONE = 2
"""The most findings of one kind that have a line each."""
MAX_NAMED = 3
GROUPS = {
    "neuron_away": "neurons that are away",
    "neuron_refused": "neurons that are not admitted, where nothing is placed",
    "neuron_problem": "neurons that report problems",
    "disk_nearly_full": "neurons whose disk is nearly full",
    "model_failing": "models that failed",
    "outdated": "models that are outdated and want a reload",
    "too_few_replicas": "models with too few replicas",
    "no_host": "models that no host can run",
    "budget_spent": "budgets that are spent",
    "budget_nearly_spent": "budgets that are nearly spent",
    "account_refused": "accounts that a limit refused lately",
    "key_breaks_workers": "keys whose requests ended engines or neurons lately",
}
"""Kind of finding -> its words where there are many. A kind without words is not grouped."""


def grouped(findings: Iterable[Attention]) -> tuple[Attention, ...]:
    """The findings in their order. Many of one kind and level become one, without an object: its
    text has their number and the first few names."""
    groups: dict[tuple[str, str], list[Attention]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.kind), []).append(finding)
    return tuple(one for group in groups.values() for one in _lines(group))


def _lines(group: list[Attention]) -> list[Attention]:
    words = GROUPS.get(group[0].kind)
    if words is None:
        return group
    of: dict[str, list[Attention]] = {}
    for finding in group:
        of.setdefault(finding.about, []).append(finding)
    if len(of) <= MAX_ALONE:
        return [_first(findings) for findings in of.values()]
    more = f" and {len(of) - MAX_NAMED:,} more" if len(of) > MAX_NAMED else ""
    text = f"{len(of):,} {words}: {', '.join(list(of)[:MAX_NAMED])}{more}"
    return [replace(group[0], about="", text=text)]


def _first(findings: list[Attention]) -> Attention:
    num_more = len(findings) - 1
    more = f", and {num_more:,} more like it" if num_more else ""
    return replace(findings[0], text=f"{findings[0].text}{more}")


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
"""Kind of finding -> filter of its page, where it stands for many."""
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
    if finding.about and finding.kind in OF_A_NEURON:
        return neuron_url(finding.about), "its page"
    if finding.about and finding.kind in OF_A_MODEL:
        return model_url(finding.about), "its page"
    url_name, page = PAGES.get(finding.kind, ("", ""))
    if not url_name:
        return "", ""
    return reverse(url_name) + ("" if finding.about else FILTERS.get(finding.kind, "")), page
