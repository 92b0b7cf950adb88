"""State of the control between ticks, in memory only: a new control starts from scratch.

snapshots, gateways' reports ─▶ FleetWatch ─▶ absent neurons, waiting models, long queues

reports, without clocks and free memory ─┐
the database                            ─┴─▶ IdleTicks ─▶ as at the last whole tick, and nothing
                                             was under way then: the tick passes, for a while
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db import connection

from fleet.live.desired_state import DesiredStates, TimeSlice
from fleet.live.reading import LiveFleet
from fleet.live.snapshot import Absences, FleetSnapshot
from fleet.placement.decisions import Observed
from fleet.placement.reconcile import is_queue_long
from inference.protocol.heartbeat import NeuronHeartbeat, ReplicaState, WaitingModel, WaitingReport

GATEWAY_SILENCE_S = 5.0
"""A report that has not changed for this long is of a dead gateway."""
WHOLE_TICK_EVERY_S = 10.0
"""For changes that only the clock brings: an idle model's unload, a failed load's next try."""
AT_REST_EVERY_S = 60.0
"""The same where the last plan was at rest."""
REFRESH_EVERY_S = 10.0
"""How often passing ticks record when hosts were seen, and their free memory."""


@dataclass(frozen=True, slots=True)
class Watched:
    snapshot: FleetSnapshot
    """Includes absent neurons."""
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


def _waiting(reports: Sequence[WaitingReport]) -> dict[str, WaitingModel]:
    waiting: dict[str, WaitingModel] = {}
    for report in reports:
        for model, here in report.models.items():
            before = waiting.get(model, WaitingModel(num_requests=0, oldest_s=0.0))
            waiting[model] = WaitingModel(
                num_requests=before.num_requests + here.num_requests,
                oldest_s=max(before.oldest_s, here.oldest_s),
            )
    return waiting


class IdleTicks:
    """Lets ticks pass while nothing has changed. SQLite counts its commits, so that asking costs
    microseconds. PostgreSQL has no such number: there every tick is whole."""

    def __init__(self) -> None:
        self._last: Any = None
        self._whole_due_s = 0.0
        self._refresh_due_s = 0.0
        self._own_changes = 0

    def may_pass(self, state: object, now_s: float) -> bool:
        """``state``: read before anything else of this tick."""
        return (
            state is not None
            and state == self._last
            and now_s < self._whole_due_s
            and _own_changes() == self._own_changes
        )

    def refresh_is_due(self, now_s: float) -> bool:
        return now_s >= self._refresh_due_s

    def refreshed(self, now_s: float) -> None:
        self._refresh_due_s = now_s + REFRESH_EVERY_S
        self._own_changes = _own_changes()

    def whole_tick_ended(self, state: object, now_s: float, *, is_at_rest: bool = False) -> None:
        """``state`` from its beginning. What the tick itself wrote, it has seen."""
        self._last = state
        self._whole_due_s = now_s + (AT_REST_EVERY_S if is_at_rest else WHOLE_TICK_EVERY_S)
        self.refreshed(now_s)


def idle_state(fleet: LiveFleet, watched: Watched, *more: object) -> object:
    """States are only compared. ``None``: somebody works or waits, and no tick may pass."""
    version = _database_version()
    heartbeats = [report.heartbeat for report in fleet.reports]
    if (
        version is None
        or fleet.time_slices
        or watched.observed.waiting
        or watched.snapshot.absent
        or watched.gone_gateways
        or any(heartbeat is None or _is_busy(heartbeat) for heartbeat in heartbeats)
        or _has_drains(fleet.desired_states)
    ):
        return None
    steady = [_steady(heartbeat) for heartbeat in heartbeats if heartbeat is not None]
    return version, steady, fleet.desired_states, more


def _database_version() -> object | None:
    """Differs after each commit of another connection; ``None`` where the database does not say."""
    if connection.vendor != "sqlite":
        return None
    connection.ensure_connection()
    return connection.connection, data_version(connection.connection)


def data_version(opened: sqlite3.Connection) -> int:
    (number,) = opened.execute("PRAGMA data_version").fetchone()
    return int(number)


def _own_changes() -> int:
    """Grows with each row that this thread's connection changes."""
    return getattr(connection.connection, "total_changes", 0)


def _is_busy(heartbeat: NeuronHeartbeat) -> bool:
    return bool(heartbeat.is_leaving or heartbeat.stages) or any(
        replica.stats is not None and replica.stats.in_flight + replica.stats.queue_depth
        for replica in heartbeat.replicas
    )


def _has_drains(desired_states: DesiredStates | None) -> bool:
    return desired_states is None or any(one.drain for one in desired_states.by_neuron.values())


def _steady(heartbeat: NeuronHeartbeat) -> NeuronHeartbeat:
    """Drops what differs each second on a host that does nothing."""
    return msgspec.structs.replace(
        heartbeat,
        time_unix_s=0.0,
        host=msgspec.structs.replace(heartbeat.host, free_memory_bytes=0),
        devices=[
            msgspec.structs.replace(
                device,
                free_memory_bytes=0,
                utilization_percent=None,
                temperature_c=None,
                power_w=None,
            )
            for device in heartbeat.devices
        ],
        replicas=_without_rates(heartbeat.replicas),
    )


def _without_rates(replicas: Sequence[ReplicaState]) -> list[ReplicaState]:
    return [
        replica
        if replica.stats is None
        else msgspec.structs.replace(
            replica,
            stats=msgspec.structs.replace(
                replica.stats, prefill_tokens_per_s=0.0, decode_tokens_per_s=0.0
            ),
        )
        for replica in replicas
    ]
