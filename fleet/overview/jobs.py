"""Reads load jobs that are active or have just ended."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from fleet.lifecycles import ACTIVE_LOAD_JOB_STATUSES
from fleet.models import LoadJob
from fleet.overview.lines import JobLine

ENDED_JOBS_SHOWN_FOR = timedelta(minutes=2)
MAX_ENDED_JOBS = 20
UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def job_lines() -> tuple[JobLine, ...]:
    """First active ones, then the newest that ended."""
    is_active = Q(status__in=ACTIVE_LOAD_JOB_STATUSES)
    has_just_ended = Q(finished_at__gte=timezone.now() - ENDED_JOBS_SHOWN_FOR)
    rows = LoadJob.objects.filter(is_active | has_just_ended).select_related("neuron")
    lines = [_job_line(job) for job in rows.order_by("-created_at")]
    ended = [line for line in lines if not line.is_active]
    return (*(line for line in lines if line.is_active), *ended[:MAX_ENDED_JOBS])


def job_lines_by_id(ids: Collection[str]) -> tuple[JobLine, ...]:
    """The existing jobs of these ids, oldest first. Other texts are skipped."""
    known = [UUID(one) for one in ids if UUID_TEXT.fullmatch(one)]
    rows = LoadJob.objects.filter(pk__in=known).select_related("neuron")
    return tuple(map(_job_line, rows.order_by("created_at")))


def _job_line(job: LoadJob) -> JobLine:
    return JobLine(
        id=str(job.pk),
        kind=job.kind,
        model=job.model_name,
        neuron=job.neuron.name,
        status=job.status,
        stage=job.stage,
        progress_fraction=job.progress_fraction,
        eta_s=job.eta_s,
        note=job.note,
        failure=job.failure_message,
    )
