"""Requesting, cancelling, claiming and ending jobs.

    pending ─▶ running ─▶ done | failed | cancelled
       └────▶ cancelled

Each move is a conditional update: a caller that changes no row was too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet.models import Neuron
from metering.actor import Actor
from metering.bench.errors import BenchValueError, JobOpenError
from metering.bench.models import BenchJob, BenchTarget
from metering.bench.scenarios import parse_scenarios
from metering.services.audit import audit_entry_create

MAX_JOB_SAMPLES = 1000
MAX_JOB_LINES = 200
SILENT_AFTER_S = 60.0
"""A running job whose control has not shown itself for so long has lost it."""
Status = BenchJob.Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a person has chosen on the page; empty fields are the plan's."""

    target: str = ""
    model: str = ""
    scenarios: Sequence[str] = field(default_factory=tuple)
    samples: int | None = None
    is_beside_load: bool = False


def target_names() -> list[str]:
    """What a job may measure: neurons that are online, and enabled targets."""
    neurons = Neuron.objects.exclude(status="away").values_list("name", flat=True)
    targets = BenchTarget.objects.filter(enabled=True).values_list("name", flat=True)
    return sorted({*neurons, *targets})


def bench_job_request(*, actor: Actor, requested: JobRequest) -> BenchJob:
    """Raises ``BenchValueError``, and ``JobOpenError`` while another job is open."""
    scenarios = [scenario.id for scenario in parse_scenarios(list(requested.scenarios))]
    if requested.target and requested.target not in target_names():
        raise BenchValueError(
            "target", f"{requested.target!r} is neither a neuron that is online nor a target"
        )
    if requested.samples is not None and not 1 <= requested.samples <= MAX_JOB_SAMPLES:
        raise BenchValueError("samples", f"samples is a number from 1 to {MAX_JOB_SAMPLES}")
    try:
        with transaction.atomic():
            job = BenchJob.objects.create(
                requested_by=str(actor)[:200],
                target=requested.target,
                model=requested.model,
                scenarios=scenarios,
                samples=requested.samples,
                is_beside_load=requested.is_beside_load,
            )
            audit_entry_create(
                actor=actor,
                action="bench_job.request",
                object_id=str(job.pk),
                detail={
                    "target": requested.target or "all",
                    "model": requested.model or "all",
                    "scenarios": scenarios,
                    "samples": requested.samples,
                },
            )
    except IntegrityError as error:
        raise JobOpenError(
            "A sweep is under way already: wait until it has ended, or cancel it."
        ) from error
    return job


def bench_job_cancel(*, actor: Actor, job_id: int) -> bool:
    """Ends a job that waits; one that runs ends after the sample that it is taking. Returns whether
    it was open."""
    open_jobs = BenchJob.objects.filter(pk=job_id, open_slot=1)
    with transaction.atomic():
        waiting = open_jobs.filter(status=Status.PENDING)
        ended = waiting.update(status=Status.CANCELLED, open_slot=None, ended_at=timezone.now())
        if not (ended or open_jobs.update(is_cancel_requested=True)):
            return False
        audit_entry_create(actor=actor, action="bench_job.cancel", object_id=str(job_id))
    return True


def bench_job_claim() -> BenchJob | None:
    """The job that waits, which the caller now runs; ``None``: there is none."""
    now = timezone.now()
    waiting = BenchJob.objects.filter(status=Status.PENDING)
    for job in waiting:
        claimed = waiting.filter(pk=job.pk).update(
            status=Status.RUNNING, started_at=now, beat_at=now
        )
        if claimed:
            job.refresh_from_db()
            return job
    return None


def bench_job_beat(*, job_id: int) -> bool:
    """Shows that the job is being run. Returns whether it shall continue."""
    running = BenchJob.objects.filter(pk=job_id, status=Status.RUNNING)
    running.update(beat_at=timezone.now())
    return running.filter(is_cancel_requested=False).exists()


def bench_job_progress(*, job: BenchJob) -> None:
    """Saves the counts and the last lines."""
    job.lines = job.lines[-MAX_JOB_LINES:]
    names = ("num_planned", "num_ok", "num_failed", "num_cells_done", "lines")
    BenchJob.objects.filter(pk=job.pk, status=Status.RUNNING).update(
        **{name: getattr(job, name) for name in names}
    )


def bench_job_end(*, job_id: int, status: str, error: str = "") -> None:
    BenchJob.objects.filter(pk=job_id, status=Status.RUNNING).update(
        status=status, error=error, open_slot=None, ended_at=timezone.now()
    )


def bench_jobs_expire(*, now: datetime) -> int:
    """Fails running jobs whose control has gone. Returns how many there were."""
    silent = BenchJob.objects.filter(
        status=Status.RUNNING, beat_at__lt=now - timedelta(seconds=SILENT_AFTER_S)
    )
    return silent.update(
        status=Status.FAILED,
        error="The control that measured has ended. What was measured until then is kept.",
        open_slot=None,
        ended_at=now,
    )
