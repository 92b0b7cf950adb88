"""State of the control plane between ticks: since when each condition has held.

snapshots, gateways' reports ─▶ FleetWatch ─▶ absent neurons, waiting models, long queues

It is kept in memory only: a control that takes over starts from scratch. The time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fleet.live.absences import Absences
from fleet.live.desired_state import TimeSlice
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.decisions import Observed, Waiting
from fleet.placement.reconcile import is_queue_long
from inference.protocol.heartbeat import WaitingReport

GATEWAY_SILENCE_S = 5.0
"""A report that has not changed for this long is of a dead gateway."""


@dataclass(frozen=True, slots=True)
class Watched:
    snapshot: FleetSnapshot
    """The fleet, with absent neurons."""
    observed: Observed
    gone_gateways: tuple[str, ...]


class FleetWatch:
    def __init__(self) -> None:
        self._absences = Absences()
        self._beats: dict[str, tuple[int, float]] = {}
        """The last beat of each gateway, and when it changed."""
        self._long_since_s: dict[str, float] = {}
        self._time_slices_since_s: dict[TimeSlice, float] | None = None
        """``None``: nothing was read yet, and the time slices of the previous control hold."""

    def look(
        self, snapshot: FleetSnapshot, reports: Mapping[str, WaitingReport], now_s: float
    ) -> Watched:
        gone = self._dead_gateways(reports, now_s)
        living = [report for name, report in reports.items() if name not in gone]
        observed = Observed(
            waiting=_waiting(living), queue_long_s=self._queue_long_s(snapshot, now_s)
        )
        return Watched(self._absences.noted(snapshot, now_s), observed, gone)

    def time_slices(self, snapshot: FleetSnapshot, now_s: float) -> tuple[TimeSlice, ...]:
        if self._time_slices_since_s is None:
            return snapshot.time_slices
        return tuple(
            msgspec.structs.replace(time_slice, age_s=now_s - since_s)
            for time_slice, since_s in self._time_slices_since_s.items()
        )

    def keep(self, time_slices: Sequence[TimeSlice], now_s: float) -> None:
        known = self._time_slices_since_s or {}
        ageless = [
            (msgspec.structs.replace(time_slice, age_s=0.0), time_slice.age_s)
            for time_slice in time_slices
        ]
        self._time_slices_since_s = {
            time_slice: known.get(time_slice, now_s - age_s) for time_slice, age_s in ageless
        }

    def _dead_gateways(self, reports: Mapping[str, WaitingReport], now_s: float) -> tuple[str, ...]:
        gone = []
        for name, report in reports.items():
            beat, since_s = self._beats.get(name, (None, now_s))
            if beat != report.beat:
                since_s = now_s
            elif now_s - since_s >= GATEWAY_SILENCE_S:
                gone.append(name)
            self._beats[name] = (report.beat, since_s)
        self._beats = {name: self._beats[name] for name in reports}
        return tuple(gone)

    def _queue_long_s(self, snapshot: FleetSnapshot, now_s: float) -> dict[str, float]:
        long = {model for model, held in snapshot.by_model.items() if is_queue_long(held)}
        self._long_since_s = {model: self._long_since_s.get(model, now_s) for model in long}
        return {model: now_s - since_s for model, since_s in self._long_since_s.items()}


def _waiting(reports: Sequence[WaitingReport]) -> dict[str, Waiting]:
    waiting: dict[str, Waiting] = {}
    for report in reports:
        for model, here in report.models.items():
            before = waiting.get(model, Waiting(num_requests=0, oldest_s=0.0))
            waiting[model] = Waiting(
                num_requests=before.num_requests + here.num_requests,
                oldest_s=max(before.oldest_s, here.oldest_s),
            )
    return waiting
