"""Writes of the bench: its plan, its targets, and its jobs: sweeps, one at a time.

    pending ─▶ running ─▶ done | failed | cancelled
       └────▶ cancelled

Each transition is a conditional update: a caller that changes no row was too late. A running job
has a thread in the control, whose tick reports that it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction
from django.utils import timezone

from fleet.models import Neuron
from metering.audit import Actor, audit_entry_create
from metering.bench.measures import parse_scenarios
from metering.bench.models import BenchJob, BenchTarget, SweepPlan, setting_names
from metering.errors import BenchError, BenchValueError

PLAN_ID = 1
Row = TypeVar("Row", bound=models.Model)


def plan_find() -> SweepPlan:
    return SweepPlan.objects.filter(pk=PLAN_ID).first() or SweepPlan(pk=PLAN_ID)


def row_save(*, actor: Actor, row: BenchTarget | SweepPlan) -> None:
    """Raises ``BenchValueError``."""
    row_check(row)
    if isinstance(row, SweepPlan):
        row.pk = PLAN_ID
    with transaction.atomic():
        row.save()
        audit_entry_create(
            actor=actor,
            action=f"bench_{'plan' if isinstance(row, SweepPlan) else 'target'}.save",
            object_id=row.name if isinstance(row, BenchTarget) else str(PLAN_ID),
            detail={name: getattr(row, name) for name in setting_names(type(row))},
        )


def target_delete(*, actor: Actor, target: BenchTarget) -> None:
    with transaction.atomic():
        audit_entry_create(actor=actor, action="bench_target.delete", object_id=target.name)
        target.delete()


def row_check(row: models.Model) -> None:
    """Raises ``BenchValueError``."""
    try:
        row.clean_fields()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise BenchValueError(field, messages[0]) from error


def row_fill(row: Row, columns: Mapping[str, Any], what: str) -> Row:
    """Django would convert values of another type: these raise ``BenchError``."""
    known = {column.name: column for column in row._meta.concrete_fields if column.name != "id"}
    for name, value in columns.items():
        is_json = isinstance(column := known.get(name), models.JSONField)
        if column is None or (is_json and type(value) is not type(column.get_default())):
            raise BenchError(f"{what} has no {name} that is {value!r}")
        setattr(row, name, value)
    try:
        row_check(row)
    except BenchValueError as error:
        raise BenchError(f"{what}: {error.field}: {error}") from error
    for name, value in columns.items():
        if getattr(row, name) != value:
            raise BenchError(f"{what} has no {name} that is {value!r}")
    return row


MAX_JOB_SAMPLES = 1000
SILENT_AFTER_S = 60.0
"""A running job whose control has not reported for this long is lost."""
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
    job.requested_by = actor[:200]
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
    """A running job ends after its present sample."""
    open_jobs = BenchJob.objects.filter(pk=job_id, open_slot=1)
    with transaction.atomic():
        waiting = open_jobs.filter(status=Status.PENDING)
        ended = waiting.update(status=Status.CANCELLED, open_slot=None, ended_at=timezone.now())
        if ended or open_jobs.update(is_cancel_requested=True):
            audit_entry_create(actor=actor, action="bench_job.cancel", object_id=str(job_id))


def bench_job_claim(*, own_ids: Collection[int] = ()) -> BenchJob | None:
    """The control's tick. ``own_ids``: jobs that run in the caller."""
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
