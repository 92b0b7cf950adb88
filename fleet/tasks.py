"""The control worker's periodic tasks; ``helexa_site.celery`` has their names and periods. When
Redis is offline, the next tick retries."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator

import redis
from django.db import Error as DatabaseError

from fleet import leadership, selectors, services
from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.reading import read_cache_reports
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.decisions import Plan
from fleet.watch import FleetWatch, IdleTicks, Watched, idle_state
from helexa_site.celery import TASK_ROLL_UP_SERIES, TASK_TICK, app
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
from metering.series_store import figures_add, series_roll_up

logger = logging.getLogger(__name__)

CONNECTING_S = 15.0
"""After a term's start a silent host may still be connecting: the server may just have started."""


class Samples:
    """Queues and devices, one sample a second, summed by minute in memory: a control that exits
    loses the last one. The ticks' thread calls ``add``, the housekeeping thread the rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._minutes: dict[int, dict[SeriesKey, Figures]] = {}

    def add(self, snapshot: FleetSnapshot, now_unix_s: float) -> None:
        at = floor_s(now_unix_s, MINUTE_S)
        sampled = list(_sample(snapshot))
        with self._lock:
            minute = self._minutes.setdefault(at, {})
            for kind, name, figures in sampled:
                add(minute.setdefault(SeriesKey(MINUTE_S, at, kind, name), {}), figures)

    def ended(self, now_unix_s: float) -> dict[int, dict[SeriesKey, Figures]]:
        present = floor_s(now_unix_s, MINUTE_S)
        with self._lock:
            return {at: minute for at, minute in self._minutes.items() if at < present}

    def forget(self, at_unix_s: int) -> None:
        with self._lock:
            self._minutes.pop(at_unix_s, None)


def _sample(snapshot: FleetSnapshot) -> Iterator[tuple[Kind, str, Figures]]:
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


watch = FleetWatch()
idle_ticks = IdleTicks()
samples = Samples()


@app.task(name=TASK_TICK)  # type: ignore[untyped-decorator]
def tick() -> None:
    client = live.redis_client()
    try:
        fleet = live.read_live_fleet(client)
        snapshot = fleet.snapshot()
        samples.add(snapshot, time.time())
        now_s = time.monotonic()
        watched = watch.look(snapshot, live.read_waiting(client), now_s)
        had_time = _had_time_to_connect()
        state = idle_state(fleet, watched, had_time)
        if idle_ticks.may_pass(state, now_s):
            if idle_ticks.refresh_is_due(now_s):
                refresh_hosts(fleet)
                idle_ticks.refreshed(now_s)
            return
        is_recorded = record_heartbeats(client, fleet, snapshot, had_time=had_time)
        plan = reconcile(client, watched, now_s)
        is_idle = is_recorded and not (plan.actions or plan.restored or plan.time_slices)
        idle_ticks.whole_tick_ended(state if is_idle else None, now_s, is_at_rest=plan.is_at_rest)
    except SnapshotUnavailableError as error:
        logger.warning("the fleet is neither recorded nor reconciled: %s", error)


def record_heartbeats(
    client: redis.Redis, fleet: live.LiveFleet, snapshot: FleetSnapshot, *, had_time: bool
) -> bool:
    """Returns whether nothing was under way. Expiry comes after recording, so that a control that
    was away does not fail live jobs. Raises ``SnapshotUnavailableError``."""
    downloading = {download.neuron.name for download in selectors.downloads_active()}
    cache_reports = read_cache_reports(client, sorted(downloading)) if downloading else {}
    with leadership.this_control.fenced():
        for report in fleet.reports:
            services.report_record(report=report)
        if had_time:
            services.silent_neurons_mark_away(snapshot=snapshot)
        if is_loading := selectors.load_jobs_active().exists():
            services.stage_loads_advance(snapshot=snapshot)
            services.load_jobs_expire()
        services.held_stages_release(snapshot=snapshot)
        if downloading:
            services.downloads_record(reports=cache_reports)
            services.downloads_expire()
        services.oversized_neurons_cut_off(client=client, now_s=time.monotonic())
    services.desired_states_publish()
    is_inviting = services.redis_users_apply()
    return not (downloading or is_loading or is_inviting)


def refresh_hosts(fleet: live.LiveFleet) -> None:
    with leadership.this_control.fenced():
        for report in fleet.reports:
            services.report_refresh(report=report)


def reconcile(client: redis.Redis, watched: Watched, now_s: float) -> Plan:
    """Raises ``SnapshotUnavailableError``."""
    plan = services.fleet_plan(
        watched=watched, time_slices=watch.time_slices(watched.snapshot, now_s)
    )
    if plan.actions or plan.restored:
        with leadership.this_control.fenced():
            services.plan_begin(plan=plan)
    watch.keep(plan.time_slices, now_s)
    live.publish_time_slices(client, plan.time_slices, watched.gone_gateways)
    return plan


def _had_time_to_connect() -> bool:
    began_s = leadership.this_control.term_began_s
    return began_s is None or time.monotonic() - began_s >= CONNECTING_S


@app.task(name=TASK_ROLL_UP_SERIES)  # type: ignore[untyped-decorator]
def roll_up_series() -> None:
    now_unix_s = time.time()
    try:
        for at_unix_s, minute in sorted(samples.ended(now_unix_s).items()):
            figures_add(minute)
            samples.forget(at_unix_s)
        num_moved = series_roll_up(now_unix_s=now_unix_s)
    except DatabaseError as error:
        logger.warning("series are not stored: %s", error)
        return
    if num_moved:
        logger.debug("rolled up or forgot %d rows of series", num_moved)
