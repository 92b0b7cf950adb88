"""Findings with links to their pages, many of one kind as one line. Pure, but for the addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from django.urls import reverse

from fleet.dashboard.links import model_url, neuron_url
from fleet.overview.lines import Attention

MAX_ALONE = 2
"""The most findings of one kind that have a line each."""
MAX_NAMED = 3
NEURONS = ("admin:fleet_neuron_changelist", "neurons")
MODELS = ("admin:fleet_cataloguemodel_changelist", "catalogue")
REPLICAS = ("admin:fleet_replica_changelist", "replicas")
ACCOUNTS = ("usage-accounts", "accounts")
CACHED = ("admin:fleet_download_cached", "what it has downloaded")


@dataclass(frozen=True, slots=True)
class FindingKind:
    page: tuple[str, str]
    """The URL's name and the link's text."""
    many: str = ""
    """Words for many findings of the kind; empty: each finding has a line."""
    filter: str = ""
    """The filter of its page, where one line stands for many findings."""
    page_of: Callable[[str], str] | None = None
    """Gives the page of the host or model that a finding names."""


KINDS = {
    "no_neuron": FindingKind(("admin:fleet_invitation_add", "invite a host")),
    "neuron_away": FindingKind(NEURONS, "neurons that are away", "?status__exact=away", neuron_url),
    "neuron_refused": FindingKind(
        NEURONS,
        "neurons that are not admitted, where nothing is placed",
        "?status__exact=refused",
        neuron_url,
    ),
    "neuron_problem": FindingKind(NEURONS, "neurons that report problems", page_of=neuron_url),
    "version_mismatch": FindingKind(NEURONS),
    "disk_nearly_full": FindingKind(CACHED, "neurons whose disk is nearly full"),
    "model_failing": FindingKind(
        REPLICAS, "models that failed", "?status__exact=failed", model_url
    ),
    "outdated": FindingKind(
        REPLICAS, "models that are outdated and want a reload", page_of=model_url
    ),
    "too_few_replicas": FindingKind(MODELS, "models with too few replicas", page_of=model_url),
    "no_host": FindingKind(MODELS, "models that no host can run", page_of=model_url),
    "budget_spent": FindingKind(ACCOUNTS, "budgets that are spent"),
    "budget_nearly_spent": FindingKind(ACCOUNTS, "budgets that are nearly spent"),
    "account_refused": FindingKind(ACCOUNTS, "accounts that a limit refused lately"),
    "key_breaks_workers": FindingKind(
        ACCOUNTS, "keys whose requests ended engines or neurons lately"
    ),
}


def grouped(findings: Iterable[Attention]) -> tuple[Attention, ...]:
    """The findings in their order. Many of one kind and level become one, without an object: its
    text has their number and the first few names."""
    groups: dict[tuple[str, str], list[Attention]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.kind), []).append(finding)
    return tuple(one for group in groups.values() for one in _lines(group))


def _lines(group: list[Attention]) -> list[Attention]:
    kind = KINDS.get(group[0].kind)
    if kind is None or not kind.many:
        return group
    of: dict[str, list[Attention]] = {}
    for finding in group:
        of.setdefault(finding.about, []).append(finding)
    if len(of) <= MAX_ALONE:
        firsts = [(one, len(more)) for one, *more in of.values()]
        return [
            replace(one, text=f"{one.text}, and {num_more:,} more like it") if num_more else one
            for one, num_more in firsts
        ]
    more = f" and {len(of) - MAX_NAMED:,} more" if len(of) > MAX_NAMED else ""
    text = f"{len(of):,} {kind.many}: {', '.join(list(of)[:MAX_NAMED])}{more}"
    return [replace(group[0], about="", text=text)]


LinkedFinding = tuple[Attention, str, str]
"""A finding, and the address and the name of the page with details; both empty: there is none."""


def linked_findings(attention: Iterable[Attention]) -> tuple[LinkedFinding, ...]:
    return tuple((finding, *_target(finding)) for finding in attention)


def _target(finding: Attention) -> tuple[str, str]:
    kind = KINDS.get(finding.kind)
    if kind is None:
        return "", ""
    if finding.about and kind.page_of is not None:
        return kind.page_of(finding.about), "its page"
    url_name, page = kind.page
    return reverse(url_name) + ("" if finding.about else kind.filter), page
