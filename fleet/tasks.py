"""The control worker's periodic tasks: each reads the live fleet and calls services.

Names and periods are in ``helexa_site.celery``. When Redis is away there is nothing to record and
the next tick tries again.
"""

from __future__ import annotations

import logging
import time

from fleet import selectors, services
from fleet.control import leadership
from fleet.control.watch import FleetWatch
from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.cache_reports import read_cache_reports
from fleet.live.neuron_rows import rows_by_neuron
from helexa_site.celery import TASK_RECONCILE, TASK_RECORD_HEARTBEATS, app

logger = logging.getLogger(__name__)

watch = FleetWatch()
"""What this process has seen of the fleet."""


@app.task(name=TASK_RECORD_HEARTBEATS)  # type: ignore[untyped-decorator]
def record_heartbeats() -> None:
    """Expiry comes after recording, so that a control that was away does not fail live jobs."""
    client = live.redis_client()
    downloading = {download.neuron.name for download in selectors.downloads_active()}
    try:
        fleet = live.read_live_fleet(client)
        cache_reports = read_cache_reports(client, sorted(downloading))
    except SnapshotUnavailableError as error:
        logger.warning("heartbeats not recorded: %s", error)
        return
    with leadership.this_control.fenced():
        rows = rows_by_neuron(one.name for one in fleet.reports if one.heartbeat is not None)
        for report in fleet.reports:
            services.report_record(report=report, rows=rows.get(report.name))
        services.silent_neurons_mark_away(snapshot=fleet.snapshot())
        services.load_jobs_expire()
        if downloading:
            services.downloads_record(reports=cache_reports)
            services.downloads_expire()
        services.oversized_neurons_cut_off(client=client, now_s=time.monotonic())
    services.desired_states_publish()
    services.redis_users_apply()


@app.task(name=TASK_RECONCILE)  # type: ignore[untyped-decorator]
def reconcile() -> None:
    client = live.redis_client()
    try:
        snapshot = live.read_snapshot_sync(client)
        reports = live.read_waiting(client)
        now_s = time.monotonic()
        watched = watch.look(snapshot, reports, now_s)
        plan = services.fleet_plan(watched=watched, turns=watch.turns(snapshot, now_s))
        if plan.actions or plan.restored:
            with leadership.this_control.fenced():
                services.plan_begin(plan=plan)
        watch.keep(plan.turns, now_s)
        live.publish_turns(client, plan.turns, watched.gone_gateways)
    except SnapshotUnavailableError as error:
        logger.warning("the fleet is not reconciled: %s", error)
