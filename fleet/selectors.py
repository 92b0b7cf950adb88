"""Reads of the fleet's database, and of neurons' downloads, which are in Redis. The catalogue is
read as a whole and cached for a second: services clear the cache of their own process, others see a
change within that second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.db.models import Count, Q, QuerySet

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.targets import UPSTREAM_PREFIX
from fleet.errors import (
    ModelDisabledError,
    UnknownModelError,
    UnknownNeuronError,
    UnknownUpstreamError,
)
from fleet.lifecycles import ACTIVE_LOAD_JOB_STATUSES, LoadJobKind, LoadJobStatus
from fleet.live import reading as live
from fleet.models import Alias, CatalogueModel, Download, Invitation, LoadJob, Neuron, Upstream
from fleet.models_toml_plan import CatalogueState
from fleet.upstreams import UpstreamEntry
from inference.protocol.neuron_tasks import CachedModel, CacheReport
from metering.money import Prices

CACHE_S = 1.0


@dataclass(frozen=True, slots=True)
class OfferedModels:
    """Adapters need an enabled base. The same object until the catalogue is read again."""

    entries: tuple[CatalogueEntry, ...]
    by_name: dict[str, CatalogueEntry]
    """Aliases and adapters are missing here."""
    by_any_name: dict[str, CatalogueEntry]
    """An adapter also as ``base:adapter``."""

    @classmethod
    def of(cls, entries: tuple[CatalogueEntry, ...]) -> OfferedModels:
        by_name = {entry.name: entry for entry in entries if entry.base is None}
        entries = tuple(e for e in entries if e.base is None or e.base in by_name)
        by_base = {f"{entry.base}:{entry.name}": entry for entry in entries if entry.base}
        by_alias = {alias: entry for entry in entries for alias in entry.aliases}
        own_names = {entry.name: entry for entry in entries}
        return cls(entries, by_name, by_base | by_alias | own_names)


class CatalogueCache:
    """Thread-safe. Two threads that find it expired may both read."""

    def __init__(
        self,
        read: Callable[[], tuple[CatalogueEntry, ...]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._last: tuple[float, OfferedModels] | None = None

    def kept(self) -> OfferedModels | None:
        last = self._last
        if last is not None and self._clock() - last[0] < CACHE_S:
            return last[1]
        return None

    def current(self) -> OfferedModels:
        kept = self.kept()
        if kept is not None:
            return kept
        asked_at_s = self._clock()
        offered = OfferedModels.of(self._read())
        self._last = (asked_at_s, offered)
        return offered

    def clear(self) -> None:
        self._last = None


def catalogue_find(name: str) -> CatalogueEntry | None:
    return catalogue_cache.current().by_any_name.get(name)


def catalogue_list() -> tuple[CatalogueEntry, ...]:
    return catalogue_cache.current().entries


def catalogue_by_name() -> dict[str, CatalogueEntry]:
    """Enabled models, without aliases. The same object until the catalogue is read again."""
    return catalogue_cache.current().by_name


def catalogue_state() -> CatalogueState:
    """Includes models that are not offered. Not cached."""
    return CatalogueState(
        models={model.name: model.settings() for model in CatalogueModel.objects.all()},
        aliases=dict(Alias.objects.values_list("name", "model__name")),
        upstreams={row.name: row.entry() for row in Upstream.objects.all()},
    )


def catalogue_cache_clear() -> None:
    catalogue_cache.clear()


def model_known(name: str) -> CatalogueModel:
    """Finds disabled models, too. Raises ``UnknownModelError``."""
    model = CatalogueModel.objects.filter(name=name).first()
    if model is None:
        raise UnknownModelError(f"There is no model named {name!r} in the catalogue")
    return model


def adapter_names(base: str) -> list[str]:
    adapters = CatalogueModel.objects.filter(base=base).order_by("name")
    return list(adapters.values_list("name", flat=True))


def model_enabled(name: str) -> CatalogueModel:
    """Raises ``UnknownModelError``, ``ModelDisabledError``."""
    model = model_known(name)
    if not model.settings().enabled:
        raise ModelDisabledError(f"{name} is in the catalogue but not enabled")
    return model


def neuron_known(name: str) -> Neuron:
    """Raises ``UnknownNeuronError``."""
    neuron = Neuron.objects.filter(name=name).first()
    if neuron is None:
        raise UnknownNeuronError(f"No neuron named {name!r} has reported yet")
    return neuron


def upstream_known(name: str) -> Upstream:
    """Raises ``UnknownUpstreamError``."""
    upstream = Upstream.objects.filter(name=name).first()
    if upstream is None:
        raise UnknownUpstreamError(f"There is no upstream named {name!r}")
    return upstream


def is_invited(neuron_name: str) -> bool:
    return Invitation.objects.filter(neuron_name=neuron_name).exists()


def load_jobs_active() -> QuerySet[LoadJob]:
    return LoadJob.objects.filter(status__in=ACTIVE_LOAD_JOB_STATUSES).select_related(
        "model", "neuron", "replacement__neuron"
    )


def downloads_active() -> QuerySet[Download]:
    return Download.objects.filter(status__in=ACTIVE_LOAD_JOB_STATUSES).select_related("neuron")


def download_find(pk: str) -> Download | None:
    return Download.objects.select_related("neuron").filter(pk=pk).first()


def unload_job_is_active(model_name: str, neuron: Neuron) -> bool:
    unloads = LoadJob.objects.filter(kind=LoadJobKind.UNLOAD, status__in=ACTIVE_LOAD_JOB_STATUSES)
    return unloads.filter(model_name=model_name, neuron=neuron).exists()


def load_jobs_by_status() -> dict[str, int]:
    counted = LoadJob.objects.values_list("status").annotate(Count("pk")).order_by()
    return dict.fromkeys(LoadJobStatus.values, 0) | dict(counted)


def models_of_upstream(name: str) -> list[CatalogueModel]:
    """By their source or a target; includes models that are not offered."""
    is_source = Q(source__startswith=f"{UPSTREAM_PREFIX}{name}/")
    models = CatalogueModel.objects.filter(is_source | ~Q(targets=[])).order_by("name")
    return [model for model in models if name in model.settings().upstream_names]


def _read_catalogue() -> tuple[CatalogueEntry, ...]:
    models = CatalogueModel.objects.filter(enabled=True).prefetch_related(
        "aliases", "load_measurements__neuron"
    )
    entries = tuple(model.entry() for model in models.order_by("name"))
    if not any(entry.upstream_names for entry in entries):
        return entries
    rows = {row.name: row for row in Upstream.objects.all()}
    upstreams = {name: row.entry() for name, row in rows.items()}
    return tuple(_with_upstreams(entry, upstreams, rows) for entry in entries)


def _with_upstreams(
    entry: CatalogueEntry, upstreams: Mapping[str, UpstreamEntry], rows: Mapping[str, Upstream]
) -> CatalogueEntry:
    source = entry.upstream_model
    return replace(
        entry,
        upstream=None if source is None else upstreams.get(source.upstream),
        target_upstreams=tuple(
            upstreams[name] for name in entry.upstream_names if name in upstreams
        ),
        upstream_prices=_upstream_prices(entry, rows),
    )


def _upstream_prices(entry: CatalogueEntry, rows: Mapping[str, Upstream]) -> dict[str, Prices]:
    found: dict[str, Prices] = {}
    for target in entry.ordered_targets:
        served = target.upstream_model
        if target.prices is None or not target.prices.are_upstreams or served is None:
            continue
        row = rows.get(served.upstream)
        if row is not None and (prices := row.prices_of(served.model)) is not None:
            found[target.name] = prices
    return found


catalogue_cache = CatalogueCache(_read_catalogue)


def nameable_models() -> tuple[str, ...]:
    """Models' names, then aliases', also of disabled models."""
    models = CatalogueModel.objects.order_by("name").values_list("name", flat=True)
    return (*models, *Alias.objects.order_by("name").values_list("name", flat=True))


def cached_list(neuron_name: str | None = None) -> tuple[dict[str, Any], ...]:
    """Leaves out offline neurons. Raises ``UnknownNeuronError``, ``SnapshotUnavailableError``."""
    if neuron_name is not None:
        names = [neuron_known(neuron_name).name]
    else:
        names = list(Neuron.objects.values_list("name", flat=True).order_by("name"))
    reports = live.read_cache_reports(live.redis_client(), names)
    sources = _sources_of_models()
    return tuple(line for name in names for line in _cached_lines(reports.get(name), sources))


def _sources_of_models() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, model in catalogue_state().models.items():
        source = model.source
        if source.startswith("pypi:") and model.revision:
            source = f"{source}=={model.revision}"
        found[name] = [source, *([model.draft_model] if model.draft_model else [])]
    return found


def _cached_lines(
    report: CacheReport | None, sources: dict[str, list[str]]
) -> Iterable[dict[str, Any]]:
    if report is None:
        return
    for model in sorted(report.cached, key=lambda one: (one.source, one.revision)):
        used = model.last_used_unix_s
        yield msgspec.to_builtins(msgspec.structs.asdict(model)) | {
            "neuron": report.neuron,
            "models": [
                name
                for name, wanted in sorted(sources.items())
                if any(is_of_source(model, source) for source in wanted)
            ],
            "last_used": None if used is None else datetime.fromtimestamp(used, UTC),
            "disk_free_bytes": report.disk_free_bytes,
            "disk_total_bytes": report.disk_total_bytes,
        }


def is_of_source(cached: CachedModel, source: str) -> bool:
    """A wheel's version is a part of its name there."""
    name = source.partition("==")[0]
    return cached.source == name or (
        name.startswith("pypi:") and cached.source.startswith(f"{name.lower()}-")
    )
