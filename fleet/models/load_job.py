"""Load jobs: the durable record of bringing one model to one neuron."""

from __future__ import annotations

import uuid

from django.db import models

from fleet.lifecycles import (
    ACTIVE_LOAD_JOB_STATUSES,
    LOAD_JOB_TRANSITIONS,
    LoadJobStatus,
    ensure_transition,
)
from fleet.models.catalogue import CatalogueModel
from fleet.models.neuron import Neuron
from fleet.snapshot import remaining_s
from inference.protocol.load import LoadStage

ACTIVE = models.Q(status__in=ACTIVE_LOAD_JOB_STATUSES)


class LoadJob(models.Model):
    """At most one is active for a (model, neuron); ``fleet.services.load_jobs`` moves it along
    the table in ``fleet.lifecycles``. The id is a UUID because neurons remember it across lives
    and databases."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.ForeignKey(CatalogueModel, on_delete=models.CASCADE, related_name="load_jobs")
    neuron = models.ForeignKey(Neuron, on_delete=models.CASCADE, related_name="load_jobs")
    requested_by = models.CharField(max_length=150, blank=True)
    status = models.CharField(
        max_length=16, choices=LoadJobStatus.choices, default=LoadJobStatus.PENDING
    )
    stage = models.CharField(
        max_length=16, blank=True, choices=[(stage.value, stage.value) for stage in LoadStage]
    )
    stage_started_at = models.DateTimeField(null=True, blank=True)
    progress_done = models.PositiveBigIntegerField(default=0)
    progress_total = models.PositiveBigIntegerField(default=0, help_text="0 while unknown.")
    progress_unit = models.CharField(max_length=16, blank=True)
    progress_detail = models.TextField(blank=True)
    failure_code = models.CharField(max_length=64, blank=True)
    failure_message = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    reported_at = models.DateTimeField(
        null=True, blank=True, help_text="When the neuron last spoke of it, to about five seconds."
    )
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["model", "-created_at"], name="load_job_model_newest")]
        constraints = [
            models.UniqueConstraint(
                fields=["model", "neuron"], condition=ACTIVE, name="load_job_one_active"
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=LoadJobStatus.values), name="load_job_status_known"
            ),
            models.CheckConstraint(
                condition=(ACTIVE & models.Q(finished_at__isnull=True))
                | (~ACTIVE & models.Q(finished_at__isnull=False)),
                name="load_job_finished_when_ended",
            ),
            models.CheckConstraint(
                condition=models.Q(status=LoadJobStatus.FAILED) ^ models.Q(failure_code=""),
                name="load_job_failure_has_code",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model.name} on {self.neuron.name}"

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE_LOAD_JOB_STATUSES

    @property
    def progress_fraction(self) -> float | None:
        """Of the present stage, 0 to 1; ``None`` while its total is not known."""
        return self.progress_done / self.progress_total if self.progress_total else None

    @property
    def eta_s(self) -> float | None:
        """Seconds the present stage still takes by its rate so far; ``None`` when unknown."""
        if not self.is_active or self.stage_started_at is None or self.reported_at is None:
            return None
        elapsed_s = (self.reported_at - self.stage_started_at).total_seconds()
        return remaining_s(elapsed_s, self.progress_done, self.progress_total)

    def ensure_may_become(self, target: LoadJobStatus) -> None:
        """Raises ``IllegalTransitionError``."""
        ensure_transition(LOAD_JOB_TRANSITIONS, LoadJobStatus(self.status), target)
