"""What lies in the caches of neurons, as they say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from fleet import live, selectors
from fleet.cache_reports import read_cache_reports
from fleet.models import Neuron
from inference.protocol.downloads import CacheReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLine:
    neuron: str
    source: str
    revision: str
    num_bytes: int
    files: tuple[dict[str, str | int], ...]
    used_by: tuple[str, ...]
    is_partial: bool
    last_used_unix_s: float | None
    disk_free_bytes: int
    disk_total_bytes: int
    """Both sizes are those of the disk that downloads go to."""


def cached_list(neuron_name: str | None = None) -> tuple[CachedLine, ...]:
    """What that neuron has cached, or all neurons have; those that are away are left out. Raises
    ``UnknownNeuronError``, ``SnapshotUnavailableError``."""
    if neuron_name is not None:
        names = [selectors.neuron_known(neuron_name).name]
    else:
        names = list(Neuron.objects.values_list("name", flat=True).order_by("name"))
    reports = read_cache_reports(live.redis_client(), names)
    return tuple(line for name in names for line in _lines(reports.get(name)))


def _lines(report: CacheReport | None) -> Iterable[CachedLine]:
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
            is_partial=model.is_partial,
            last_used_unix_s=model.last_used_unix_s,
            disk_free_bytes=report.disk_free_bytes,
            disk_total_bytes=report.disk_total_bytes,
        )
