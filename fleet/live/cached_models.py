"""Cached models by the neurons' reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from fleet import selectors
from fleet.live import reading as live
from fleet.live.cache_reports import read_cache_reports
from fleet.models import Neuron
from fleet.placement.download_place import is_of_source
from inference.protocol.downloads import CacheReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLine:
    neuron: str
    source: str
    revision: str
    num_bytes: int
    files: tuple[dict[str, str | int], ...]
    used_by: tuple[str, ...]
    models: tuple[str, ...]
    """The catalogue's models that are loaded from this source; empty: nothing there needs it."""
    is_partial: bool
    missing: tuple[str, ...]
    """Files that a download wanted and that are not whole."""
    wanted_bytes: int
    partial_bytes: int
    last_used_unix_s: float | None
    disk_free_bytes: int
    disk_total_bytes: int
    """Both sizes are those of the disk that downloads go to."""

    @property
    def last_used(self) -> datetime | None:
        used = self.last_used_unix_s
        return None if used is None else datetime.fromtimestamp(used, UTC)


def cached_list(neuron_name: str | None = None) -> tuple[CachedLine, ...]:
    """What that neuron has cached, or all neurons have; those that are away are left out. Raises
    ``UnknownNeuronError``, ``SnapshotUnavailableError``."""
    if neuron_name is not None:
        names = [selectors.neuron_known(neuron_name).name]
    else:
        names = list(Neuron.objects.values_list("name", flat=True).order_by("name"))
    reports = read_cache_reports(live.redis_client(), names)
    sources = _sources_of_models()
    return tuple(line for name in names for line in _lines(reports.get(name), sources))


def _sources_of_models() -> dict[str, list[str]]:
    """Model of the catalogue -> its source, with its version, and that of its draft model."""
    found: dict[str, list[str]] = {}
    for name, model in selectors.catalogue_state().models.items():
        source = model.source
        if source.startswith("pypi:") and model.revision:
            source = f"{source}=={model.revision}"
        found[name] = [source, *([model.draft_model] if model.draft_model else [])]
    return found


def _lines(report: CacheReport | None, sources: dict[str, list[str]]) -> Iterable[CachedLine]:
    if report is None:
        return
    for model in sorted(report.cached, key=lambda one: (one.source, one.revision)):
        yield CachedLine(
            neuron=report.neuron,
            source=model.source,
            revision=model.revision,
            num_bytes=model.num_bytes,
            files=tuple(msgspec.to_builtins(file) for file in model.files),
            used_by=tuple(model.used_by),
            models=tuple(
                name
                for name, wanted in sorted(sources.items())
                if any(is_of_source(model, source) for source in wanted)
            ),
            is_partial=model.is_partial,
            missing=tuple(model.missing),
            wanted_bytes=model.wanted_bytes,
            partial_bytes=model.partial_bytes,
            last_used_unix_s=model.last_used_unix_s,
            disk_free_bytes=report.disk_free_bytes,
            disk_total_bytes=report.disk_total_bytes,
        )
