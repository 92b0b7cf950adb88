"""Builds the board, and the live parts of the pages of a model and a neuron. The board's query is
in its address, and each refresh sends it back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.http import QueryDict
from django.urls import reverse

from fleet import overview_lines as lines
from fleet.dashboard import rows
from fleet.dashboard.links import linked_findings
from fleet.models import CatalogueModel, Neuron
from fleet.overview import REFUSAL_HOURS, UPSTREAM, fleet_overview
from fleet.words import count_words
from metering.ledger.entries import Outcome
from metering.money import cost_text
from metering.pages import requests_url

MODELS_A_PAGE = 12
NEURONS_A_PAGE = 6
NUM_UNFOLDED = 3
MONEY_TILE = "Spent today"
SHOWN = {
    "": "All",
    "loaded": "Loaded",
    "active": "Under way",
    "problems": "With problems",
    "unloaded": "Not loaded",
}
MAX_AUDIT_LINES = 5
MAX_FINDINGS = 10
RANKS = {
    "failed": 0,
    "recovering": 0,
    "loading": 1,
    "draining": 1,
    "ready": 2,
    UPSTREAM: 2,
    "asleep": 3,
    "away": 4,
}
LAST_RANK = 5

JobsOfModels = dict[str, list[lines.JobLine]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardQuery:
    """Lists are names separated by spaces. Unreadable values count as empty."""

    models: str = ""
    shown: str = ""
    models_page: str = ""
    neurons: str = ""
    neurons_page: str = ""
    flipped: str = ""
    """Neurons folded where they would be unfolded, and the reverse."""
    kept_models: str = ""
    kept_neurons: str = ""
    """The rows shown at present: a refresh keeps their places."""

    @classmethod
    def of(cls, query: QueryDict) -> Self:
        return cls(**{one.name: query.get(one.name, "").strip() for one in fields(cls)})

    def address(self, **changes: str) -> str:
        asked = asdict(self) | changes | {"kept_models": "", "kept_neurons": ""}
        return f"?{urlencode({name: value for name, value in asked.items() if value})}"


class Named(Protocol):
    @property
    def name(self) -> str: ...


Line = TypeVar("Line", bound=Named)


def page_of(
    listed: Iterable[Line], *, rank: Callable[[Line], int], size: int, number: str, kept: str
) -> Page[Line]:
    """Lowest rank first, then by name. ``kept``: names on this page so far, which keep their order.
    A page past the last one is the last one."""
    ordered = sorted(listed, key=lambda line: (rank(line), line.name))
    page = Paginator(ordered, size).get_page(number)
    if kept:
        by_name = {line.name: line for line in ordered}
        stay = [by_name.pop(name) for name in dict.fromkeys(kept.split()) if name in by_name]
        others = [line for line in page if line.name in by_name]
        page.object_list = [*stay, *others][: len(page)]
    return page


def board_of(overview: lines.FleetOverview, query: BoardQuery | None = None) -> rows.Row:
    query = query or BoardQuery()
    jobs_of_models: JobsOfModels = defaultdict(list)
    for job in overview.jobs:
        jobs_of_models[job.model].append(job)
    explained = {
        (replica.model, neuron.name): replica.failure
        for neuron in overview.neurons
        for replica in neuron.replicas
    }
    models = _listed_models(overview.models, jobs_of_models, query)
    neurons = page_of(
        [one for one in overview.neurons if query.neurons.lower() in one.name.lower()],
        rank=neuron_rank,
        size=NEURONS_A_PAGE,
        number=query.neurons_page,
        kept=query.kept_neurons,
    )
    return {
        "query": query,
        "shown_choices": SHOWN.items(),
        "attention": linked_findings(overview.attention[:MAX_FINDINGS]),
        "num_more_findings": max(0, len(overview.attention) - MAX_FINDINGS),
        "tiles": _tiles(overview),
        "models": [rows.model_row(one, jobs_of_models[one.name], explained) for one in models],
        "models_paging": _paging("models", models, query),
        "neurons": _neuron_rows(overview, neurons, query),
        "neurons_paging": _paging("neurons", neurons, query),
        "downloads": download_rows(overview.downloads),
        "refusals": overview.refusals,
        "audit": overview.audit[:MAX_AUDIT_LINES],
        "steps": _steps(overview),
    }


def _paging(noun: str, page: Page[Any], query: BoardQuery) -> rows.Row:
    def address(number: int) -> str:
        return query.address(**{f"{noun}_page": str(number) if number > 1 else ""})

    return {
        "page": page,
        "kept": " ".join(line.name for line in page),
        "previous": address(page.number - 1) if page.has_previous() else "",
        "next": address(page.number + 1) if page.has_next() else "",
    }


def _neuron_rows(
    overview: lines.FleetOverview, neurons: Iterable[lines.NeuronLine], query: BoardQuery
) -> list[rows.Row]:
    flipped = set(query.flipped.split())
    is_small = len(overview.neurons) <= NUM_UNFOLDED

    def is_unfolded(neuron: lines.NeuronLine) -> bool:
        return (is_small and neuron.status != rows.AWAY) != (neuron.name in flipped)

    found = rows.neuron_rows(overview, neurons, is_unfolded)
    for row in found:
        row["fold"] = query.address(flipped=" ".join(sorted(flipped ^ {row["line"].name})))
    return found


def neuron_rank(neuron: lines.NeuronLine) -> int:
    if neuron.status == rows.AWAY:
        return 5
    if neuron.problems or any(replica.status == "failed" for replica in neuron.replicas):
        return 0
    if neuron.status != "online":
        return 3 if neuron.status == "draining" else 4
    return 1 if neuron.replicas else 2


def _listed_models(
    models: Iterable[lines.ModelLine], jobs: JobsOfModels, query: BoardQuery
) -> Page[lines.ModelLine]:
    def rank(model: lines.ModelLine) -> int:
        rank = RANKS.get(model.status, LAST_RANK)
        if model.replicas < model.min_replicas or model.has_outdated:
            return 0
        return min(rank, 1) if any(job.is_active for job in jobs[model.name]) else rank

    def is_asked(model: lines.ModelLine) -> bool:
        if query.models.lower() not in model.name.lower():
            return False
        match query.shown:
            case "loaded":
                return model.status != "unloaded"
            case "unloaded":
                return model.status == "unloaded"
            case "active":
                return rank(model) == 1
            case "problems":
                return rank(model) == 0 or bool(model.no_host)
            case _:
                return True

    return page_of(
        filter(is_asked, models),
        rank=rank,
        size=MODELS_A_PAGE,
        number=query.models_page,
        kept=query.kept_models,
    )


def _steps(overview: lines.FleetOverview) -> list[str]:
    steps = [] if overview.neurons else ["neuron"]
    if not overview.models:
        steps.append("model")
    elif not any(model.replicas for model in overview.models) and not overview.jobs:
        steps.append("load")
    return steps


def _tiles(overview: lines.FleetOverview) -> list[rows.Row]:
    online = [neuron for neuron in overview.neurons if neuron.status != rows.AWAY]
    replicas = [replica for neuron in online for replica in neuron.replicas]
    last = overview.minutes[-2] if len(overview.minutes) > 1 else None
    waiting = sum(replica.queue_depth for replica in replicas)
    speed = sum(replica.decode_tokens_per_s for replica in replicas if replica.in_flight)
    refusals = requests_url(outcome=Outcome.REFUSED.value, since=f"{REFUSAL_HOURS}h")
    tiles = (
        (
            "Requests a minute",
            count_words(last.requests if last else 0),
            f"{count_words(overview.requests_today)} today",
            requests_url(),
        ),
        ("Tokens a minute", count_words(last.tokens if last else 0), "", reverse("usage")),
        (
            "In flight",
            f"{sum(replica.in_flight for replica in replicas):,}",
            f"{waiting:,} waiting, {speed:.0f} tok/s",
            reverse("admin:fleet_replica_changelist"),
        ),
        (
            "Refused",
            count_words(sum(line.requests for line in overview.refusals)),
            "in this hour and the last",
            refusals,
        ),
        (
            MONEY_TILE,
            cost_text(overview.spent_today_micro_usd),
            "since midnight UTC",
            reverse("usage-accounts"),
        ),
    )
    return [
        {
            "title": title,
            "value": value,
            "detail": detail,
            "url": url,
            "is_of_money": title == MONEY_TILE,
        }
        for title, value, detail, url in tiles
    ]


def outdated_rows(
    overview: lines.FleetOverview,
) -> tuple[tuple[lines.ModelLine, tuple[rows.ProgressRow, ...]], ...]:
    return tuple(
        (model, rows.progress_of_model([job for job in overview.jobs if job.model == model.name]))
        for model in overview.models
        if model.has_outdated
    )


def download_rows(downloads: Iterable[lines.DownloadLine]) -> list[tuple[str, rows.ProgressRow]]:
    return [(f"{one.source} on {one.neuron}", rows.under_way(one.status, one)) for one in downloads]


def model_context(model: CatalogueModel) -> rows.Row:
    """``home.row``: ``None`` where it is not offered. ``home.neurons`` include its base's."""
    settings, overview = model.settings(), fleet_overview()
    name, base = model.name, settings.base

    def is_of_it(replica: lines.ReplicaLine) -> bool:
        return replica.model == name or (replica.model == base and name in replica.adapters)

    line = next((one for one in overview.models if one.name == name), None)
    jobs = [job for job in overview.jobs if job.model == name]
    holding = [
        replace(neuron, devices=(), replicas=replicas)
        for neuron in overview.neurons
        if (replicas := tuple(filter(is_of_it, neuron.replicas)))
    ]
    loaded = [replica for neuron in holding for replica in neuron.replicas]
    is_kept_loaded = line is not None and line.min_replicas > 0
    home = {
        "name": name,
        "row": line and rows.model_row(line, jobs),
        "waits_for": "" if line is None else _waits_for(line),
        "neurons": rows.neuron_rows(overview, holding),
        "may_sleep": any(one.may_sleep for one in loaded) and not base and not is_kept_loaded,
    }
    return {"home": home, "is_pinned": settings.pinned, "may_try": settings.task == "text"}


def _waits_for(line: lines.ModelLine) -> str:
    if line.no_host:
        return f"No host can run it: {line.no_host}."
    return f"No host takes it now: {line.not_now}." if line.not_now else ""


def neuron_context(neuron: Neuron) -> rows.Row:
    overview = fleet_overview()
    found = [one for one in overview.neurons if one.name == neuron.name]
    downloads = [one for one in overview.downloads if one.neuron == neuron.name]
    return {
        "neuron_row": next(iter(rows.neuron_rows(overview, found)), None),
        "downloads": download_rows(downloads),
    }
