"""Load jobs: the durable record of loading, unloading or reloading one model on one neuron."""

from __future__ import annotations

import uuid

from django.db import models

from fleet.lifecycles import (
    ACTIVE_LOAD_JOB_STATUSES,
    LEAVING_KINDS,
    LOAD_JOB_TRANSITIONS,
    LoadJobKind,
    LoadJobStatus,
    ensure_transition,
)
from fleet.models.catalogue import CatalogueModel
from fleet.models.neuron import Neuron
from fleet.snapshot import remaining_s
from inference.protocol.load import LoadStage

ACTIVE = models.Q(status__in=ACTIVE_LOAD_JOB_STATUSES)
LEAVING = models.Q(kind__in=LEAVING_KINDS)


class LoadJob(models.Model):
    """For a model on a neuron at most one load or reload is active, and at most one unload or sleep
    beside it: a load under way ends when its neuron has dropped it, not when that was asked for.
    ``fleet.services`` moves jobs along the table in ``fleet.lifecycles``. The id is a UUID because
    neurons remember it across lives and databases."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=8, choices=LoadJobKind.choices, default=LoadJobKind.LOAD)
    model_name = models.CharField(max_length=100)
    model = models.ForeignKey(
        CatalogueModel,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="load_jobs",
        help_text="Empty when the catalogue no longer has it.",
    )
    neuron = models.ForeignKey(Neuron, on_delete=models.CASCADE, related_name="load_jobs")
    devices = models.JSONField(
        default=list, blank=True, help_text="Where on the neuron; empty: the neuron decides."
    )
    evict = models.JSONField(
        default=list, blank=True, help_text="Models that leave the neuron for this one."
    )
    spec_digest = models.CharField(
        max_length=64, blank=True, help_text="Of the load spec that was sent."
    )
    replacement = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="reloads",
        help_text="A reload's load on another neuron, which ends before this one's is unloaded.",
    )
    requested_by = models.CharField(max_length=150, blank=True)
    status = models.CharField(
        max_length=16, choices=LoadJobStatus.choices, default=LoadJobStatus.PENDING
    )
    note = models.TextField(blank=True, help_text="How it is done, in words.")
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
                fields=["model_name", "neuron"],
                condition=ACTIVE & ~LEAVING,
                name="load_job_one_active",
            ),
            models.UniqueConstraint(
                fields=["model_name", "neuron"],
                condition=ACTIVE & LEAVING,
                name="load_job_one_active_unload",
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=LoadJobKind.values), name="load_job_kind_known"
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
        return f"{self.model_name} on {self.neuron.name}"

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE_LOAD_JOB_STATUSES

    @property
    def progress_fraction(self) -> float | None:
        """Of the present stage, 0 to 1; ``None`` while its total is not known. What has succeeded
        is complete."""
        if self.status == LoadJobStatus.SUCCEEDED:
            return 1.0
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
