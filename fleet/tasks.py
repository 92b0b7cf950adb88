"""The control worker's periodic tasks: each reads the live fleet and calls services.

Names and periods are in ``helexa_site.celery``. When Redis is offline there is nothing to record
and the next tick retries.
"""

from __future__ import annotations

import logging
import time

import redis
from django.db import Error as DatabaseError

from fleet import selectors, services
from fleet.control import leadership
from fleet.control.idle import IdleTicks, idle_state
from fleet.control.samples import Samples
from fleet.control.watch import FleetWatch, Watched
from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.cached_models import read_cache_reports
from fleet.live.snapshot import FleetSnapshot
from fleet.placement.decisions import Plan
from helexa_site.celery import TASK_ROLL_UP_SERIES, TASK_TICK, app
from metering.series_store import figures_add, series_roll_up

logger = logging.getLogger(__name__)

watch = FleetWatch()
idle_ticks = IdleTicks()
samples = Samples()
"""Figures of minutes that are not stored yet."""
CONNECTING_S = 15.0
"""How long after a term's start a silent host may still be connecting: the server, or its Redis,
may just have started."""


@app.task(name=TASK_TICK)  # type: ignore[untyped-decorator]
def tick() -> None:
    """Records what the fleet reports, then decides what it needs, unless all is as before."""
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
    """Returns whether nothing was under way: nothing loads, nothing is downloaded, and no host is
    invited, whose share of Redis is measured with each tick. Expiry comes after recording, so that
    a control that was away does not fail live jobs. Raises ``SnapshotUnavailableError``."""
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
