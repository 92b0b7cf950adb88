"""Load jobs: the durable record of loading, unloading or reloading one model on one neuron."""

from __future__ import annotations

import uuid

import msgspec
from django.db import models

from fleet.lifecycles import LEAVING_KINDS, LoadJobKind, LoadJobStatus
from fleet.live.load_estimates import NO_ESTIMATE, LoadEstimate, load_estimate
from fleet.models.catalogue import CatalogueModel
from fleet.models.columns import EMPTY_LIST
from fleet.models.job import ACTIVE, Job, status_constraints
from fleet.models.neuron import Neuron
from inference.protocol.load import StageSpec
from inference.protocol.load_progress import LoadStage

LEAVING = models.Q(kind__in=LEAVING_KINDS)


class LoadJob(Job):
    """A load, reload, unload or sleep of a model on a neuron. At most one load or reload of a model
    is active on a neuron, and at most one unload or sleep beside it: a load under way ends when its
    neuron has dropped it, not when that was asked for. ``fleet.services`` moves jobs along the
    table in ``fleet.lifecycles``. The id is a UUID because neurons remember it across restarts and
    databases."""

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
    stages = models.JSONField(
        default=list,
        db_default=EMPTY_LIST,
        blank=True,
        help_text="How its layers are divided over those devices; empty: they are not.",
    )
    predicted_tokens_per_s = models.FloatField(
        null=True, blank=True, help_text="What the plan of its stages expects for one request."
    )
    stage_links = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Of its stages' links, encrypted, until the stages on other neurons listen.",
    )
    may_divide = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Placement chose its device: where that is too small it may be divided.",
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
    note = models.TextField(blank=True, help_text="How it is done, in words.")
    stage = models.CharField(
        max_length=16, blank=True, choices=[(stage.value, stage.value) for stage in LoadStage]
    )
    stage_started_at = models.DateTimeField(null=True, blank=True)
    engine_started_at = models.DateTimeField(
        null=True, blank=True, help_text="When its engine started, after downloads and its turn."
    )
    expected_load_s = models.FloatField(
        null=True, blank=True, help_text="What the last load of the model on that neuron took."
    )
    progress_done = models.PositiveBigIntegerField(default=0)
    progress_total = models.PositiveBigIntegerField(default=0, help_text="0 while unknown.")
    progress_unit = models.CharField(max_length=16, blank=True)
    progress_detail = models.TextField(blank=True)

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
            *status_constraints("load_job"),
        ]

    def __str__(self) -> str:
        return f"{self.model_name} on {self.neuron.name}"

    @property
    def stage_specs(self) -> list[StageSpec]:
        """The load's stages, as its orders have them; empty: the model is whole."""
        return msgspec.convert(self.stages, list[StageSpec])

    @property
    def progress_fraction(self) -> float | None:
        """The progress of the present stage, 0 to 1; ``None`` while its total is not known, 1 once
        the job has succeeded."""
        if self.status == LoadJobStatus.SUCCEEDED:
            return 1.0
        return self.progress_done / self.progress_total if self.progress_total else None

    @property
    def estimate(self) -> LoadEstimate:
        """Estimates the whole load by the last one there, else its stage by its rate."""
        if not self.is_active or self.stage_started_at is None or self.reported_at is None:
            return NO_ESTIMATE
        began_at, now = self.engine_started_at, self.reported_at
        return load_estimate(
            stage=self.stage,
            done=self.progress_done,
            total=self.progress_total,
            stage_elapsed_s=(now - self.stage_started_at).total_seconds(),
            engine_elapsed_s=None if began_at is None else (now - began_at).total_seconds(),
            last_load_s=self.expected_load_s,
        )

    @property
    def share(self) -> float | None:
        return self.estimate.share

    @property
    def eta_s(self) -> float | None:
        """Seconds that it still takes; ``None`` when unknown."""
        return self.estimate.left_s
