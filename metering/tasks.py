"""The control's periodic tasks, whose names and periods are in ``helexa_site.celery``. When the
database is offline the next tick retries."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timedelta

from django.conf import settings
from django.core.management.base import CommandError
from django.db import Error as DatabaseError
from django.db import connections
from django.db.models import Max, QuerySet
from django.utils import timezone

from helexa_site.celery import (
    TASK_BENCH_JOBS,
    TASK_FORGET_LEDGER_ENTRIES,
    TASK_FORGET_REQUEST_RECORDS,
    TASK_SWEEP_ORPHANS,
    app,
)
from metering.bench.models import BenchJob
from metering.bench.services import bench_job_claim
from metering.bench.sweep import sweep_of
from metering.errors import BenchError
from metering.ledger.store import reservations_sweep
from metering.models import CapturedRequest, LedgerEntry, RequestRecord
from metering.sql import in_batches

logger = logging.getLogger(__name__)

Rows = type[LedgerEntry | RequestRecord | CapturedRequest]
ROWS_PER_BATCH: dict[Rows, int] = {LedgerEntry: 500, RequestRecord: 500, CapturedRequest: 10}
"""A captured request may have a megabyte of bodies, prompt and text."""
MAX_JOB_LINES = 200
COUNTS = ("num_planned", "num_ok", "num_failed", "num_cells_done")

_suspects: frozenset[str] = frozenset()


@app.task(name=TASK_SWEEP_ORPHANS)  # type: ignore[untyped-decorator]
def sweep_orphans() -> None:
    global _suspects
    suspects, _suspects = _suspects, frozenset()
    try:
        _suspects = reservations_sweep(now_unix_s=time.time(), suspects=suspects)
    except DatabaseError as error:
        logger.warning("reservations of gateways that died are not released: %s", error)


@app.task(name=TASK_FORGET_LEDGER_ENTRIES)  # type: ignore[untyped-decorator]
def forget_ledger_entries() -> None:
    _forget(LedgerEntry, settings.CONFIG.ledger_retention_days)


@app.task(name=TASK_FORGET_REQUEST_RECORDS)  # type: ignore[untyped-decorator]
def forget_request_records() -> None:
    config = settings.CONFIG
    _forget(RequestRecord, config.request_retention_days, max_rows=config.max_request_records)
    _forget(CapturedRequest, config.capture_retention_days)


def _forget(model: Rows, days: int, *, max_rows: int = 0) -> None:
    """0 days: any age."""
    before = timezone.now() - timedelta(days=days) if days else None
    what = model._meta.verbose_name_plural
    try:
        num_forgotten = rows_forget(model, before=before, max_rows=max_rows)
    except DatabaseError as error:
        logger.warning("old %s not forgotten: %s", what, error)
        return
    if num_forgotten:
        logger.info("forgot %d old %s", num_forgotten, what)


def rows_forget(model: Rows, *, before: datetime | None, max_rows: int = 0) -> int:
    """Returns how many. ``None`` and 0 rows: no limit. Each batch is a transaction of its own: the
    ticks, which write to the same database, wait for one batch at most."""

    def forget() -> int:
        ids = _due(model, before, max_rows)
        model._default_manager.filter(pk__in=ids).delete()
        return len(ids)

    return in_batches(forget)


def _due(model: Rows, before: datetime | None, max_rows: int) -> list[int]:
    """Ids grow by one for each row, so counting a large table is not needed."""
    rows, size = model._default_manager.values_list("pk", flat=True), ROWS_PER_BATCH[model]
    old = [] if before is None else list(rows.filter(at__lt=before).order_by("at")[:size])
    if old or not max_rows:
        return old
    newest = model._default_manager.aggregate(id=Max("pk"))["id"] or 0
    return list(rows.filter(pk__lte=newest - max_rows).order_by("pk")[:size])


_threads: dict[int, threading.Thread] = {}


@app.task(name=TASK_BENCH_JOBS)  # type: ignore[untyped-decorator]
def bench_jobs() -> None:
    """A job takes hours: it has a thread of its own, which ends with the process."""
    if not BenchJob.objects.filter(open_slot=1).exists():
        return
    own_ids = [job_id for job_id, thread in _threads.items() if thread.is_alive()]
    if (job := bench_job_claim(own_ids=own_ids)) is not None:
        _threads[job.pk] = threading.Thread(
            target=_run_job, args=(job,), name=str(job), daemon=True
        )
        _threads[job.pk].start()


def _run_job(job: BenchJob) -> None:
    try:
        bench_job_run(job)
    finally:
        connections.close_all()


class _CancelledError(Exception):
    """No ``BenchError``: the sweep does not continue with the next target."""


def bench_job_run(job: BenchJob) -> None:
    """Blocks until the job has ended, however."""
    status, error = BenchJob.Status.FAILED, ""
    try:
        if _sweep(job):
            status = BenchJob.Status.DONE
        else:
            error = "Nothing was measured: the lines name the reasons."
    except _CancelledError:
        status = BenchJob.Status.CANCELLED
    except (BenchError, CommandError) as problem:
        error = str(problem)
    except Exception:
        logger.exception("%s broke", job)
        error = "The sweep broke; the control's log has the traceback."
    _running(job).update(status=status, error=error, open_slot=None, ended_at=timezone.now())


def _running(job: BenchJob) -> QuerySet[BenchJob]:
    return BenchJob.objects.filter(pk=job.pk, status=BenchJob.Status.RUNNING)


def _sweep(job: BenchJob) -> bool:

    def report(line: str) -> None:
        job.lines = [*job.lines[1 - MAX_JOB_LINES :], line]
        counts = {name: getattr(sweep, name) for name in COUNTS}
        _running(job).update(lines=job.lines, **counts)

    def ensure_wanted() -> None:
        if not _running(job).filter(is_cancel_requested=False).exists():
            raise _CancelledError

    options = {
        "targets": [job.target] if job.target else [],
        "models": [job.model] if job.model else [],
        "scenarios": job.scenarios,
        "samples": job.samples,
        "is_beside_load": job.is_beside_load,
    }
    sweep = sweep_of(options, report)
    sweep.checkpoint = ensure_wanted
    sweep.run()
    return not sweep.has_nothing
