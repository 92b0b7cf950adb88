"""Sweeps from the page: requested there, run by the control, one at a time.

    pending ─▶ running ─▶ done | failed | cancelled
       └────▶ cancelled

Each transition is a conditional update: a caller that changes no row was too late. A running job
has a thread in the control, whose tick reports that it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta

from django.core.management.base import CommandError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from fleet.models import Neuron
from metering.audit import Actor, audit_entry_create
from metering.bench.measures import parse_scenarios
from metering.bench.models import BenchJob, BenchTarget
from metering.bench.sweep import sweep_of
from metering.errors import BenchError, BenchValueError

logger = logging.getLogger(__name__)

MAX_JOB_SAMPLES = 1000
MAX_JOB_LINES = 200
SILENT_AFTER_S = 60.0
"""A running job whose control has not reported for this long is lost."""
COUNTS = ("num_planned", "num_ok", "num_failed", "num_cells_done")
Status = BenchJob.Status


def target_names() -> list[str]:
    neurons = Neuron.objects.exclude(status="away").values_list("name", flat=True)
    targets = BenchTarget.objects.filter(enabled=True).values_list("name", flat=True)
    return sorted({*neurons, *targets})


def bench_job_request(*, actor: Actor, job: BenchJob) -> None:
    """Raises ``BenchError`` where another one is open, and ``BenchValueError``."""
    job.scenarios = [scenario.id for scenario in parse_scenarios(job.scenarios)]
    if job.target and job.target not in target_names():
        raise BenchValueError(
            "target", f"{job.target!r} is neither a neuron that is online nor a target"
        )
    if job.samples is not None and not 1 <= job.samples <= MAX_JOB_SAMPLES:
        raise BenchValueError("samples", f"samples is a number from 1 to {MAX_JOB_SAMPLES}")
    job.requested_by = str(actor)[:200]
    try:
        with transaction.atomic():
            job.save(force_insert=True)
            audit_entry_create(
                actor=actor,
                action="bench_job.request",
                object_id=str(job.pk),
                detail={
                    "target": job.target or "all",
                    "model": job.model or "all",
                    "scenarios": job.scenarios,
                    "samples": job.samples,
                },
            )
    except IntegrityError as error:
        raise BenchError(
            "A sweep is under way already: wait until it has ended, or cancel it."
        ) from error


def bench_job_cancel(*, actor: Actor, job_id: int) -> None:
    """Ends a waiting job; a running one ends after its present sample."""
    open_jobs = BenchJob.objects.filter(pk=job_id, open_slot=1)
    with transaction.atomic():
        waiting = open_jobs.filter(status=Status.PENDING)
        ended = waiting.update(status=Status.CANCELLED, open_slot=None, ended_at=timezone.now())
        if ended or open_jobs.update(is_cancel_requested=True):
            audit_entry_create(actor=actor, action="bench_job.cancel", object_id=str(job_id))


def bench_job_claim(*, own_ids: Collection[int] = ()) -> BenchJob | None:
    """The control's tick: reports that the jobs ``own_ids`` run, fails those whose control is gone,
    and claims the waiting one for the caller."""
    now = timezone.now()
    running = BenchJob.objects.filter(status=Status.RUNNING)
    running.filter(pk__in=own_ids).update(beat_at=now)
    running.filter(beat_at__lt=now - timedelta(seconds=SILENT_AFTER_S)).update(
        status=Status.FAILED,
        error="The control that measured has ended. What was measured until then is kept.",
        open_slot=None,
        ended_at=now,
    )
    waiting = BenchJob.objects.filter(status=Status.PENDING)
    job = waiting.first()
    columns = {"status": Status.RUNNING, "started_at": now, "beat_at": now}
    if job is None or not waiting.filter(pk=job.pk).update(**columns):
        return None
    job.refresh_from_db()
    return job


class _CancelledError(Exception):
    """No ``BenchError``: the sweep does not continue with the next target."""


def bench_job_run(job: BenchJob) -> None:
    """Runs a claimed job: the same sweep as ``bench once``, with its progress in the job's row.
    Blocks until the job has ended, however."""
    status, error = Status.FAILED, ""
    try:
        if _sweep(job):
            status = Status.DONE
        else:
            error = "Nothing was measured: the lines name the reasons."
    except _CancelledError:
        status = Status.CANCELLED
    except (BenchError, CommandError) as problem:
        error = str(problem)
    except Exception:
        logger.exception("%s broke", job)
        error = "The sweep broke; the control's log has the traceback."
    _running(job).update(status=status, error=error, open_slot=None, ended_at=timezone.now())


def _running(job: BenchJob) -> QuerySet[BenchJob]:
    return BenchJob.objects.filter(pk=job.pk, status=Status.RUNNING)


def _sweep(job: BenchJob) -> bool:
    """Returns whether it measured what there was. Raises ``BenchError``."""

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
