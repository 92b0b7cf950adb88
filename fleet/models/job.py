"""What a neuron is asked to do: the columns that load jobs and downloads have in common."""

from __future__ import annotations

from django.db import models

from fleet.lifecycles import (
    ACTIVE_LOAD_JOB_STATUSES,
    LOAD_JOB_TRANSITIONS,
    LoadJobStatus,
    ensure_transition,
)

ACTIVE = models.Q(status__in=ACTIVE_LOAD_JOB_STATUSES)


class Job(models.Model):
    """A job moves along the table in ``fleet.lifecycles``, and ``fleet.services`` moves it."""

    requested_by = models.CharField(max_length=150, blank=True)
    status = models.CharField(
        max_length=16, choices=LoadJobStatus.choices, default=LoadJobStatus.PENDING
    )
    failure_code = models.CharField(max_length=64, blank=True)
    failure_message = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    reported_at = models.DateTimeField(
        null=True, blank=True, help_text="When the neuron last spoke of it, to about five seconds."
    )
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE_LOAD_JOB_STATUSES

    def ensure_may_become(self, target: LoadJobStatus) -> None:
        """Raises ``IllegalTransitionError``."""
        ensure_transition(LOAD_JOB_TRANSITIONS, LoadJobStatus(self.status), target)


def status_constraints(table: str) -> list[models.BaseConstraint]:
    """The constraints of a job's table: an ended job has an end, a failed one a reason."""
    return [
        models.CheckConstraint(
            condition=models.Q(status__in=LoadJobStatus.values), name=f"{table}_status_known"
        ),
        models.CheckConstraint(
            condition=(ACTIVE & models.Q(finished_at__isnull=True))
            | (~ACTIVE & models.Q(finished_at__isnull=False)),
            name=f"{table}_finished_when_ended",
        ),
        models.CheckConstraint(
            condition=models.Q(status=LoadJobStatus.FAILED) ^ models.Q(failure_code=""),
            name=f"{table}_failure_has_code",
        ),
    ]
