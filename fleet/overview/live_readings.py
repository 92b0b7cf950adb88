"""What only Redis knows at this moment: devices' readings, disks, downloads, refusals."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import redis

from fleet import live
from fleet.errors import SnapshotUnavailableError
from fleet.overview.lines import DeviceLine, DownloadLine, RefusalLine
from fleet.refusals import read_refusals
from fleet.snapshot import FleetSnapshot, remaining_s
from inference.protocol import keys
from inference.protocol.downloads import (
    CacheJobState,
    CacheJobStatus,
    CacheReport,
    decode_cache_report,
)
from inference.protocol.refusals import Refused

logger = logging.getLogger(__name__)

REFUSAL_HOURS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReadings:
    devices: Mapping[tuple[str, str], DeviceLine] = field(default_factory=dict)
    """By neuron and device."""
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """By neuron."""
    downloads: tuple[DownloadLine, ...] = ()
    refusals: tuple[RefusalLine, ...] = ()


NO_READINGS = LiveReadings()


def read_live() -> LiveReadings | None:
    """``None``: Redis does not answer."""
    client = live.redis_client()
    try:
        snapshot = live.read_snapshot_sync(client)
        reports = _cache_reports(client, [neuron.name for neuron in snapshot.neurons])
        refused = read_refusals(client, hours=REFUSAL_HOURS)
    except (SnapshotUnavailableError, redis.RedisError, OSError):
        return None
    return LiveReadings(
        devices=_device_lines(snapshot),
        disks={report.neuron: _disk(report) for report in reports},
        downloads=tuple(_download_lines(reports)),
        refusals=_refusal_lines(refused),
    )


def _device_lines(snapshot: FleetSnapshot) -> dict[tuple[str, str], DeviceLine]:
    return {
        (neuron.name, f"{device.kind}:{device.index}"): DeviceLine(
            id=f"{device.kind}:{device.index}",
            name=device.name,
            total_memory_bytes=device.total_memory_bytes,
            free_memory_bytes=device.free_memory_bytes,
            utilization_percent=device.utilization_percent,
            temperature_c=device.temperature_c,
            power_w=device.power_w,
        )
        for neuron in snapshot.neurons
        for device in neuron.devices
    }


def _refusal_lines(refused: Mapping[Refused, int]) -> tuple[RefusalLine, ...]:
    by_code: Counter[str] = Counter()
    for one, number in refused.items():
        by_code[one.code] += number
    return tuple(RefusalLine(code=code, requests=num) for code, num in by_code.most_common())


def _cache_reports(client: redis.Redis, neurons: list[str]) -> list[CacheReport]:
    """Of those that say what they have downloaded."""
    if not neurons:
        return []
    payloads: Any = client.mget([keys.downloads_key(name) for name in neurons])
    found = []
    for name, payload in zip(neurons, payloads, strict=True):
        try:
            report = None if payload is None else decode_cache_report(payload)
        except msgspec.DecodeError as error:
            logger.info("what %s has downloaded does not decode: %s", name, error)
            continue
        if report is not None and report.neuron == name:
            found.append(report)
    return found


def _disk(report: CacheReport) -> Disk:
    return Disk(total_bytes=report.disk_total_bytes, free_bytes=report.disk_free_bytes)


def _download_lines(reports: Iterable[CacheReport]) -> Iterable[DownloadLine]:
    for report in reports:
        for job in report.jobs:
            if job.kind == "pull" and job.status in (CacheJobStatus.QUEUED, CacheJobStatus.RUNNING):
                yield _download_line(report, job)


def _download_line(report: CacheReport, job: CacheJobState) -> DownloadLine:
    """Times are by the neuron's own clock."""
    progress = job.progress
    has_total = progress is not None and progress.total > 0
    elapsed_s = report.time_unix_s - job.since_unix_s
    return DownloadLine(
        neuron=report.neuron,
        source=job.source,
        status=job.status.value,
        progress_fraction=progress.done / progress.total if progress and has_total else None,
        eta_s=remaining_s(elapsed_s, progress.done, progress.total) if progress else None,
    )
