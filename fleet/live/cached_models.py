"""Cached models by neuron, from their download reports in Redis.

``inference.protocol.downloads`` has the report. A neuron writes it every few seconds and on
changes; a malformed report, or one of another neuron, is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import redis

from fleet import selectors
from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.neuron_reads import NeuronValueError, run_reads, text_read
from fleet.live.reports import printable, value_problem
from fleet.models import Neuron
from inference.logs import ThrottledLog
from inference.protocol.downloads import CachedModel, CacheReport, decode_cache_report
from inference.protocol.keys import downloads_key
from inference.redis_link import MAX_VALUE_BYTES

logger = logging.getLogger(__name__)
_log = ThrottledLog(logger, logging.WARNING)

MAX_REPORT_BYTES = MAX_VALUE_BYTES


def read_cache_reports(client: redis.Redis, neurons: Sequence[str]) -> dict[str, CacheReport]:
    """The report of each neuron that has one, by its name. Raises ``SnapshotUnavailableError``."""
    reads = [text_read(downloads_key(neuron), max_bytes=MAX_REPORT_BYTES) for neuron in neurons]
    try:
        payloads = run_reads(client, reads)
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error
    reports = {}
    for neuron, payload in zip(neurons, payloads, strict=True):
        if payload is None:
            continue
        try:
            if isinstance(payload, NeuronValueError):
                raise ValueError(str(payload))
            reports[neuron] = _understood(neuron, payload)
        except ValueError as error:
            _log.log(neuron, f"the downloads of {neuron} are not understood: {error}")
    return reports


def _understood(neuron: str, payload: bytes) -> CacheReport:
    report = decode_cache_report(payload)
    if report.neuron != neuron:
        raise ValueError("it is another neuron's")
    if problem := value_problem(report):
        raise ValueError(problem)
    return printable(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLine:
    neuron: str
    source: str
    revision: str
    num_bytes: int
    files: list[dict[str, str | int]]
    used_by: list[str]
    models: tuple[str, ...]
    """The catalogue's models loaded from this source; empty: none needs it."""
    is_partial: bool
    missing: list[str]
    """Incomplete files of a download."""
    wanted_bytes: int
    partial_bytes: int
    last_used_unix_s: float | None
    disk_free_bytes: int
    disk_total_bytes: int
    """Both numbers describe the disk that downloads go to."""

    @property
    def last_used(self) -> datetime | None:
        used = self.last_used_unix_s
        return None if used is None else datetime.fromtimestamp(used, UTC)


def cached_list(neuron_name: str | None = None) -> tuple[CachedLine, ...]:
    """The cached models of that neuron, or of all; offline neurons are left out. Raises
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
            models=tuple(
                name
                for name, wanted in sorted(sources.items())
                if any(is_of_source(model, source) for source in wanted)
            ),
            disk_free_bytes=report.disk_free_bytes,
            disk_total_bytes=report.disk_total_bytes,
            **msgspec.to_builtins(msgspec.structs.asdict(model)),
        )


def is_of_source(cached: CachedModel, source: str) -> bool:
    """Whether it was downloaded from ``source``. A wheel's version is part of its name there."""
    name = source.partition("==")[0]
    return cached.source == name or (
        name.startswith("pypi:") and cached.source.startswith(f"{name.lower()}-")
    )
