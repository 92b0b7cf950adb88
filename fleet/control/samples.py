"""Samples of queues and devices, one a second, summed by minute: the part of the series that
requests do not have. Kept in memory until their minute has ended; a control that exits loses the
last.

    tick ── add ─▶ the present minute ─▶ ended minutes ── housekeeping ─▶ metering.series_store
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from fleet.live.snapshot import FleetSnapshot
from inference.protocol.heartbeat import device_name
from metering.series import (
    FLEET_NAME,
    MINUTE_S,
    SUM,
    Figures,
    Kind,
    SeriesKey,
    add,
    floor_s,
    in_bucket,
)


class Samples:
    """The ticks' thread calls ``add``, the housekeeping thread the rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._minutes: dict[int, dict[SeriesKey, Figures]] = {}

    def add(self, snapshot: FleetSnapshot, now_unix_s: float) -> None:
        at = floor_s(now_unix_s, MINUTE_S)
        sampled = list(sample(snapshot))
        with self._lock:
            minute = self._minutes.setdefault(at, {})
            for kind, name, figures in sampled:
                add(minute.setdefault(SeriesKey(MINUTE_S, at, kind, name), {}), figures)

    def ended(self, now_unix_s: float) -> dict[int, dict[SeriesKey, Figures]]:
        """Figures of complete minutes, by their beginning."""
        present = floor_s(now_unix_s, MINUTE_S)
        with self._lock:
            return {at: minute for at, minute in self._minutes.items() if at < present}

    def forget(self, at_unix_s: int) -> None:
        with self._lock:
            self._minutes.pop(at_unix_s, None)


def sample(snapshot: FleetSnapshot) -> Iterator[tuple[Kind, str, Figures]]:
    waiting: Counter[tuple[Kind, str]] = Counter()
    running: Counter[tuple[Kind, str]] = Counter()
    waiting[Kind.FLEET, FLEET_NAME] = 0
    for neuron in snapshot.neurons:
        waiting[Kind.NEURON, neuron.name] += 0
        for replica in neuron.replicas:
            for subject in (
                (Kind.FLEET, FLEET_NAME),
                (Kind.NEURON, neuron.name),
                (Kind.MODEL, replica.model),
            ):
                waiting[subject] += replica.queue_depth
                running[subject] += replica.in_flight
        for device in neuron.devices:
            used_bytes = device.total_memory_bytes - device.free_memory_bytes
            figures = {
                "samples": 1,
                f"memory_used_bytes{SUM}": max(0, used_bytes),
                f"memory_bytes{SUM}": device.total_memory_bytes,
            }
            if device.utilization_percent is not None:
                figures["busy_samples"] = 1
                figures[f"busy_percent{SUM}"] = device.utilization_percent
            yield Kind.DEVICE, f"{neuron.name}/{device_name(device)}", figures
    for (kind, name), depth in waiting.items():
        yield (
            kind,
            name,
            {
                "samples": 1,
                f"queue_depth{SUM}": depth,
                in_bucket("queue_depth", depth): 1,
                f"in_flight{SUM}": running[kind, name],
            },
        )
