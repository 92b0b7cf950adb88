"""Findings of one kind as one line: 49 hosts that are away take no 49 lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fleet.overview import Attention

MAX_ALONE = 2
"""The largest number of objects with findings of one kind that have a line each."""
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
    """The findings in their order. Many of one kind and level become one, which is about nothing in
    particular: its text has their number and the first few names."""
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
    """The first finding, with the number of the others about the same object."""
    num_more = len(findings) - 1
    more = f", and {num_more:,} more like it" if num_more else ""
    return replace(findings[0], text=f"{findings[0].text}{more}")
