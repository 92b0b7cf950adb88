"""Builds the board from an overview, and the live parts of a model's page and of a neuron's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse

from fleet.dashboard import rows
from fleet.dashboard.finding_links import LinkedFinding, grouped, linked_findings
from fleet.dashboard.query import BoardQuery, Listing, Shown, listing_of
from fleet.dashboard.words import count_words
from fleet.models import CatalogueModel, Neuron
from fleet.overview import lines
from fleet.overview.selector import REFUSAL_HOURS, UPSTREAM, fleet_overview
from metering.ledger.entries import Outcome
from metering.links import requests_url
from metering.money import cost_text

MODELS_A_PAGE = 12
NEURONS_A_PAGE = 6
MAX_AUDIT_LINES = 5
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
class Tile:
    title: str
    value: str
    detail: str = ""
    url: str = ""
    """The page of the counted rows; empty: none."""
    is_of_money: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    query: BoardQuery
    attention: tuple[LinkedFinding, ...]
    tiles: tuple[Tile, ...]
    models: tuple[rows.ModelRow, ...]
    models_paging: Listing[lines.ModelLine]
    neurons: tuple[rows.NeuronRow, ...]
    neurons_paging: Listing[lines.NeuronLine]
    downloads: list[tuple[str, rows.ProgressRow]]
    refusals: tuple[lines.RefusalLine, ...]
    audit: tuple[lines.AuditLine, ...]
    steps: tuple[str, ...]
    """Next steps of an operator whose fleet is empty, by name; empty: nothing is missing. The first
    key, request and people are steps of another card: ``fleet.first_steps``."""


def board_of(overview: lines.FleetOverview, query: BoardQuery | None = None) -> Board:
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
    sought = [one for one in overview.neurons if query.neurons.lower() in one.name.lower()]
    neurons = listing_of("neurons", sought, query, rank=neuron_rank, page_size=NEURONS_A_PAGE)
    return Board(
        query=query,
        attention=linked_findings(grouped(overview.attention)),
        tiles=_tiles(overview),
        models=tuple(
            rows.model_row(model, jobs_of_models[model.name], explained) for model in models.lines
        ),
        models_paging=models,
        neurons=rows.neuron_rows(
            overview, neurons.lines, query=query, num_neurons=len(overview.neurons)
        ),
        neurons_paging=neurons,
        downloads=download_rows(overview.downloads),
        refusals=overview.refusals,
        audit=overview.audit[:MAX_AUDIT_LINES],
        steps=_steps(overview),
    )


def neuron_rank(neuron: lines.NeuronLine) -> int:
    """Problems first, then healthy neurons, then offline ones, which are one finding."""
    if neuron.status == rows.AWAY:
        return 5
    if neuron.problems or any(replica.status == "failed" for replica in neuron.replicas):
        return 0
    if neuron.status != "online":
        return 3 if neuron.status == "draining" else 4
    return 1 if neuron.replicas else 2


def _listed_models(
    models: Iterable[lines.ModelLine], jobs: JobsOfModels, query: BoardQuery
) -> Listing[lines.ModelLine]:
    def rank(model: lines.ModelLine) -> int:
        rank = RANKS.get(model.status, LAST_RANK)
        if model.replicas < model.min_replicas or model.has_outdated:
            return 0
        return min(rank, 1) if any(job.is_active for job in jobs[model.name]) else rank

    def is_asked(model: lines.ModelLine) -> bool:
        if query.models.lower() not in model.name.lower():
            return False
        match query.shown:
            case Shown.LOADED:
                return model.status != "unloaded"
            case Shown.UNLOADED:
                return model.status == "unloaded"
            case Shown.ACTIVE:
                return rank(model) == 1
            case Shown.PROBLEMS:
                return rank(model) == 0 or bool(model.no_host)
            case _:
                return True

    asked = filter(is_asked, models)
    return listing_of("models", asked, query, rank=rank, page_size=MODELS_A_PAGE)


def _steps(overview: lines.FleetOverview) -> tuple[str, ...]:
    steps = []
    if not overview.neurons:
        steps.append("neuron")
    if not overview.models:
        steps.append("model")
    elif not any(model.replicas for model in overview.models) and not overview.jobs:
        steps.append("load")
    return tuple(steps)


def _tiles(overview: lines.FleetOverview) -> tuple[Tile, ...]:
    replicas = [
        replica
        for neuron in overview.neurons
        for replica in neuron.replicas
        if neuron.status != rows.AWAY
    ]
    last = overview.minutes[-2] if len(overview.minutes) > 1 else None
    running = sum(replica.in_flight for replica in replicas)
    waiting = sum(replica.queue_depth for replica in replicas)
    speed = sum(replica.decode_tokens_per_s for replica in replicas if replica.in_flight)
    refused = sum(line.requests for line in overview.refusals)
    return (
        Tile(
            title="Requests a minute",
            value=count_words(last.requests if last else 0),
            detail=f"{count_words(overview.requests_today)} today",
            url=requests_url(),
        ),
        Tile(
            title="Tokens a minute",
            value=count_words(last.tokens if last else 0),
            url=reverse("usage"),
        ),
        Tile(
            title="In flight",
            value=f"{running:,}",
            detail=f"{waiting:,} waiting, {speed:.0f} tok/s",
            url=reverse("admin:fleet_replica_changelist"),
        ),
        Tile(
            title="Refused",
            value=count_words(refused),
            detail="in this hour and the last",
            url=requests_url(outcome=Outcome.REFUSED.value, since=f"{REFUSAL_HOURS}h"),
        ),
        Tile(
            title="Spent today",
            value=cost_text(overview.spent_today_micro_usd),
            detail="since midnight UTC",
            url=reverse("usage-accounts"),
            is_of_money=True,
        ),
    )


def outdated_rows(
    overview: lines.FleetOverview,
) -> tuple[tuple[lines.ModelLine, tuple[rows.ProgressRow, ...]], ...]:
    """The models with an outdated replica, and the progress of their jobs."""
    return tuple(
        (model, rows.progress_of_model([job for job in overview.jobs if job.model == model.name]))
        for model in overview.models
        if model.has_outdated
    )


def download_rows(downloads: Iterable[lines.DownloadLine]) -> list[tuple[str, rows.ProgressRow]]:
    return [(f"{one.source} on {one.neuron}", rows.download_progress(one)) for one in downloads]


def model_context(model: CatalogueModel) -> dict[str, Any]:
    """``home.row`` is ``None`` where the model is not offered. ``home.neurons`` have replicas of
    it, or of its base, and no devices. ``home.waits_for``: why no host can load it now."""
    settings, overview = model.settings(), fleet_overview()
    name, base = model.name, settings.base

    def is_of_it(replica: lines.ReplicaLine) -> bool:
        return replica.model == name or (replica.model == base and name in replica.adapters)

    line = next((one for one in overview.models if one.name == name), None)
    jobs = [job for job in overview.jobs if job.model == name]
    row = None if line is None else rows.model_row(line, jobs)
    holding = [
        replace(neuron, devices=(), replicas=replicas)
        for neuron in overview.neurons
        if (replicas := tuple(filter(is_of_it, neuron.replicas)))
    ]
    may_sleep = any(
        one.status == "ready" and not one.lies_on_hosts
        for neuron in holding
        for one in neuron.replicas
    )
    home = {
        "name": name,
        "row": row,
        "waits_for": "" if line is None else _waits_for(line),
        "neurons": _unfolded(overview, holding),
        "may_sleep": may_sleep and not base and (row is None or not row.is_kept_loaded),
    }
    return {"home": home, "is_pinned": settings.pinned, "may_try": settings.task == "text"}


def _waits_for(line: lines.ModelLine) -> str:
    if line.no_host:
        return f"No host can run it: {line.no_host}."
    return f"No host takes it now: {line.not_now}." if line.not_now else ""


def neuron_context(neuron: Neuron) -> dict[str, Any]:
    overview = fleet_overview()
    found = [one for one in overview.neurons if one.name == neuron.name]
    downloads = [one for one in overview.downloads if one.neuron == neuron.name]
    return {
        "neuron_row": next(iter(_unfolded(overview, found)), None),
        "downloads": download_rows(downloads),
    }


def _unfolded(
    overview: lines.FleetOverview, neurons: list[lines.NeuronLine]
) -> tuple[rows.NeuronRow, ...]:
    away = frozenset(neuron.name for neuron in neurons if neuron.status == rows.AWAY)
    return rows.neuron_rows(overview, neurons, query=BoardQuery(flipped=away), num_neurons=1)
