"""Builds the board's rows from an overview. Pure, except that it resolves addresses of admin
pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from django.urls import reverse

from fleet.dashboard.finding_links import LinkedFinding, grouped, linked_findings
from fleet.dashboard.neuron_rows import AWAY, neuron_rows
from fleet.dashboard.neuron_rows import rank_of as neuron_rank
from fleet.dashboard.query import BoardQuery, Listing, Shown, page_of
from fleet.dashboard.rows import (
    DownloadRow,
    ModelRow,
    NeuronRow,
    PagingRow,
    ProgressRow,
    Tile,
)
from fleet.dashboard.words import count_words, job_progress, left_words
from fleet.overview.lines import (
    AuditLine,
    DownloadLine,
    FleetOverview,
    JobLine,
    ModelLine,
    NeuronLine,
    RefusalLine,
)
from fleet.overview.selector import REFUSAL_HOURS, UPSTREAM
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

JobsOfModels = dict[str, list[JobLine]]
Explained = Mapping[tuple[str, str], str]
"""The failures that the replicas' rows state, by model and neuron."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    query: BoardQuery
    attention: tuple[LinkedFinding, ...]
    tiles: tuple[Tile, ...]
    models: tuple[ModelRow, ...]
    models_paging: PagingRow
    neurons: tuple[NeuronRow, ...]
    neurons_paging: PagingRow
    downloads: tuple[DownloadRow, ...]
    refusals: tuple[RefusalLine, ...]
    audit: tuple[AuditLine, ...]
    steps: tuple[str, ...]
    """Next steps of an operator whose fleet is empty, by name; empty: nothing is missing. The first
    key, request and people are steps of another card: ``fleet.first_steps``."""


def board_of(overview: FleetOverview, query: BoardQuery | None = None) -> Board:
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
        [neuron for neuron in overview.neurons if query.neurons.lower() in neuron.name.lower()],
        rank=neuron_rank,
        page=query.neurons_page,
        page_size=NEURONS_A_PAGE,
        kept=query.kept_neurons,
    )
    return Board(
        query=query,
        attention=linked_findings(grouped(overview.attention)),
        tiles=_tiles(overview),
        models=tuple(
            model_row(model, jobs_of_models[model.name], explained) for model in models.lines
        ),
        models_paging=_paging(
            models, MODELS_A_PAGE, lambda page: replace(query, models_page=page).url_query()
        ),
        neurons=neuron_rows(
            overview, neurons.lines, query=query, num_neurons=len(overview.neurons)
        ),
        neurons_paging=_paging(
            neurons, NEURONS_A_PAGE, lambda page: replace(query, neurons_page=page).url_query()
        ),
        downloads=tuple(map(download_row, overview.downloads)),
        refusals=overview.refusals,
        audit=overview.audit[:MAX_AUDIT_LINES],
        steps=_steps(overview),
    )


def _listed_models(
    models: Iterable[ModelLine], jobs: JobsOfModels, query: BoardQuery
) -> Listing[ModelLine]:
    def rank(model: ModelLine) -> int:
        rank = RANKS.get(model.status, LAST_RANK)
        if model.replicas < model.min_replicas or model.has_outdated:
            return 0
        return min(rank, 1) if any(job.is_active for job in jobs[model.name]) else rank

    def is_asked(model: ModelLine) -> bool:
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

    return page_of(
        filter(is_asked, models),
        rank=rank,
        page=query.models_page,
        page_size=MODELS_A_PAGE,
        kept=query.kept_models,
    )


def _paging(
    listing: Listing[ModelLine] | Listing[NeuronLine],
    page_size: int,
    query_at: Callable[[int], str],
) -> PagingRow:
    first = (listing.page - 1) * page_size + 1
    words = f"{first:,} to {first + len(listing.lines) - 1:,} of {listing.num_lines:,}"
    has_more = listing.page < listing.num_pages
    return PagingRow(
        words=words if listing.num_pages > 1 else "",
        page=listing.page,
        kept=" ".join(line.name for line in listing.lines),
        previous=query_at(listing.page - 1) or "?" if listing.page > 1 else "",
        next=query_at(listing.page + 1) if has_more else "",
    )


def _steps(overview: FleetOverview) -> tuple[str, ...]:
    steps = []
    if not overview.neurons:
        steps.append("neuron")
    if not overview.models:
        steps.append("model")
    elif not any(model.replicas for model in overview.models) and not overview.jobs:
        steps.append("load")
    return tuple(steps)


def _tiles(overview: FleetOverview) -> tuple[Tile, ...]:
    replicas = [
        replica
        for neuron in overview.neurons
        for replica in neuron.replicas
        if neuron.status != AWAY
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


def model_row(
    model: ModelLine, jobs: Sequence[JobLine], explained: Explained = MappingProxyType({})
) -> ModelRow:
    """``jobs`` are this model's, active ones before those that have ended."""
    least = f"{model.min_replicas} to " if model.min_replicas != model.max_replicas else ""
    progress = progress_of_model(jobs, explained)
    return ModelRow(
        line=model,
        replicas=""
        if model.status == UPSTREAM
        else f"{model.replicas} ready, {least}{model.max_replicas} wanted",
        progress=progress[0] if progress else None,
        num_more_jobs=max(0, len(progress) - 1),
    )


def outdated_rows(
    overview: FleetOverview,
) -> tuple[tuple[ModelLine, tuple[ProgressRow, ...]], ...]:
    """The models with an outdated replica, and the progress of their jobs."""
    return tuple(
        (model, progress_of_model([job for job in overview.jobs if job.model == model.name]))
        for model in overview.models
        if model.has_outdated
    )


def progress_of_model(
    jobs: Sequence[JobLine], explained: Explained = MappingProxyType({})
) -> tuple[ProgressRow, ...]:
    """``jobs``, newest first: on one neuron only the newest counts. ``explained``: the failures
    that the replicas' rows state."""
    newest: dict[str, JobLine] = {}
    for job in jobs:
        newest.setdefault(job.neuron, job)
    shown = [job for job in jobs if job.is_active or newest[job.neuron] is job]
    return tuple(
        job_progress(
            job,
            with_neuron=True,
            with_failure=explained.get((job.model, job.neuron)) != job.failure,
        )
        for job in shown
    )


def download_row(download: DownloadLine) -> DownloadRow:
    fraction = download.progress_fraction
    share = "" if fraction is None else f" {fraction:.0%}"
    progress = ProgressRow(
        text=f"{download.status}{share}{left_words(download.eta_s)}",
        percent=None if fraction is None else round(100 * fraction),
    )
    return DownloadRow(title=f"{download.source} on {download.neuron}", progress=progress)
