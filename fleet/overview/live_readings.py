"""What only Redis knows at this moment: devices' readings, disks, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import redis

from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.cached_models import read_cache_reports
from fleet.live.refusals import read_counts
from fleet.live.snapshot import FleetSnapshot
from fleet.overview.lines import DeviceLine
from inference.protocol.downloads import CacheReport
from inference.protocol.refusals import Refused

REFUSAL_HOURS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReadings:
    devices: Mapping[tuple[str, str], DeviceLine] = field(default_factory=dict)
    """The devices' readings, by neuron and device."""
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """The disks' readings, by neuron."""
    refused: Mapping[Refused, int] = field(default_factory=dict)
    """How many requests of whom and why, in this hour and the last."""


NO_READINGS = LiveReadings()


def read_live() -> LiveReadings | None:
    """``None``: Redis does not answer."""
    client = live.redis_client()
    try:
        snapshot = live.read_snapshot_sync(client)
        reports = read_cache_reports(client, [neuron.name for neuron in snapshot.neurons])
        refused = read_counts(client, hours=REFUSAL_HOURS)
    except (SnapshotUnavailableError, redis.RedisError, OSError):
        return None
    return LiveReadings(
        devices=_device_lines(snapshot),
        disks={name: _disk(report) for name, report in reports.items()},
        refused=refused,
    )


def _device_lines(snapshot: FleetSnapshot) -> dict[tuple[str, str], DeviceLine]:
    return {
        (neuron.name, f"{device.kind}:{device.index}"): DeviceLine(
            id=f"{device.kind}:{device.index}",
            name=device.name,
            total_memory_bytes=device.total_memory_bytes,
            free_memory_bytes=device.free_memory_bytes,
            installed_memory_bytes=device.installed_memory_bytes,
            utilization_percent=device.utilization_percent,
            temperature_c=device.temperature_c,
            power_w=device.power_w,
        )
        for neuron in snapshot.neurons
        for device in neuron.devices
    }


def _disk(report: CacheReport) -> Disk:
    return Disk(total_bytes=report.disk_total_bytes, free_bytes=report.disk_free_bytes)
