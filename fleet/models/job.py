"""Jobs of neurons (loads and downloads), and measurements of loads."""

from __future__ import annotations

import uuid
from dataclasses import fields
from typing import Any

import msgspec
from django.db import models

from fleet.catalogue.entry import MeasuredLoad
from fleet.lifecycles import (
    ACTIVE_LOAD_JOB_STATUSES,
    LEAVING_KINDS,
    DownloadKind,
    LoadJobKind,
    LoadJobStatus,
)
from fleet.live.snapshot import NO_ESTIMATE, LoadEstimate, load_estimate, remaining_s
from fleet.models.catalogue import CatalogueModel, json_list, moment, one_of, unique
from fleet.models.neuron import Neuron
from inference.protocol.load import PrefillSpeed, StageSpec
from inference.protocol.load_report import LoadStage

ACTIVE = models.Q(status__in=ACTIVE_LOAD_JOB_STATUSES)


class Job(models.Model):
    requested_by = models.CharField(max_length=150, blank=True)
    status = models.CharField(
        max_length=16, choices=LoadJobStatus.choices, default=LoadJobStatus.PENDING
    )
    failure_code = models.CharField(max_length=64, blank=True)
    failure_message = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = moment()
    reported_at = moment("When the neuron last spoke of it, to about five seconds.")
    finished_at = moment()

    class Meta:
        abstract = True

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE_LOAD_JOB_STATUSES


def status_constraints(table: str) -> list[models.BaseConstraint]:
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


LEAVING = models.Q(kind__in=LEAVING_KINDS)


class LoadJob(Job):
    """At most one load or reload of a model is active on a neuron, and at most one unload or sleep
    beside it: a running load ends when its neuron has dropped it, not when that was requested. The
    id is a UUID because neurons remember it across restarts and databases."""

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
    stages = json_list("How its layers are divided over those devices; empty: they are not.")
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
    stage_started_at = moment()
    engine_started_at = moment("When its engine started, after downloads and its turn.")
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
            unique("model_name", "neuron", condition=ACTIVE & ~LEAVING, name="load_job_one_active"),
            unique(
                "model_name",
                "neuron",
                condition=ACTIVE & LEAVING,
                name="load_job_one_active_unload",
            ),
            one_of("kind", LoadJobKind.values, "load_job_kind_known"),
            *status_constraints("load_job"),
        ]

    def __str__(self) -> str:
        return f"{self.model_name} on {self.neuron.name}"

    @property
    def stage_specs(self) -> list[StageSpec]:
        return msgspec.convert(self.stages, list[StageSpec])

    @property
    def progress_fraction(self) -> float | None:
        """The present stage's share, 0 to 1; ``None`` while its total is unknown."""
        if self.status == LoadJobStatus.SUCCEEDED:
            return 1.0
        return self.progress_done / self.progress_total if self.progress_total else None

    @property
    def estimate(self) -> LoadEstimate:
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
        return self.estimate.left_s


PULLS = models.Q(kind=DownloadKind.PULL)


class Download(Job):
    """At most one pull of the same files is active on a neuron. Neurons know it by its id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=8, choices=DownloadKind.choices, default=DownloadKind.PULL)
    neuron = models.ForeignKey(Neuron, on_delete=models.CASCADE, related_name="downloads")
    source = models.CharField(max_length=500)
    file = models.CharField(max_length=255, blank=True, help_text="A file or quant in the source.")
    revision = models.CharField(max_length=100, blank=True, help_text="Empty: the newest.")
    sha256 = models.CharField(max_length=64, blank=True)
    files = models.JSONField(
        default=list, blank=True, help_text="What is deleted of it; empty: all."
    )
    bytes_done = models.PositiveBigIntegerField(default=0)
    bytes_total = models.PositiveBigIntegerField(default=0, help_text="0 while unknown.")
    detail = models.TextField(blank=True)
    cancel_wanted_at = moment()

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["status", "-created_at"], name="download_status_newest")]
        constraints = [
            unique(
                "neuron",
                "source",
                "file",
                "revision",
                condition=ACTIVE & PULLS,
                name="download_one_active_pull",
            ),
            one_of("kind", DownloadKind.values, "download_kind_known"),
            *status_constraints("download"),
        ]

    def __str__(self) -> str:
        what = f"{self.source} {self.file}".strip()
        return f"{what} on {self.neuron.name}"

    @property
    def progress_fraction(self) -> float | None:
        """0 to 1; ``None`` while the total is not known."""
        if self.status == LoadJobStatus.SUCCEEDED:
            return 1.0
        return min(1.0, self.bytes_done / self.bytes_total) if self.bytes_total else None

    @property
    def eta_s(self) -> float | None:
        if not self.is_active or self.started_at is None or self.reported_at is None:
            return None
        elapsed_s = (self.reported_at - self.started_at).total_seconds()
        return remaining_s(elapsed_s, self.bytes_done, self.bytes_total)


class LoadMeasurement(models.Model):
    """The last load on that neuron. Deleted when the model's files or their form change."""

    model = models.ForeignKey(
        CatalogueModel, on_delete=models.CASCADE, related_name="load_measurements"
    )
    neuron = models.ForeignKey(Neuron, on_delete=models.CASCADE, related_name="load_measurements")
    device_kind = models.CharField(max_length=8, choices=[("cpu", "CPU"), ("cuda", "CUDA")])
    load_bytes = models.PositiveBigIntegerField(help_text="All but KV.")
    process_bytes = models.PositiveBigIntegerField(help_text="Of the engine process itself.")
    kv_token_bytes = models.PositiveBigIntegerField()
    memory_correction_bytes = models.BigIntegerField(
        help_text="What the estimate from the files fell short by; below 0 where it was too high."
    )
    load_s = models.FloatField(
        null=True, help_text="Seconds from its engine's start until it was loaded."
    )
    prefill_token_s = models.FloatField(
        null=True, help_text="Average over requests; empty where there were none yet."
    )
    prefill_growth_s = models.FloatField(null=True)
    prefill_window_tokens = models.PositiveIntegerField(null=True)
    context_tokens = models.PositiveIntegerField(
        null=True, help_text="The limit that was enforced on prompt plus output."
    )
    capabilities = models.JSONField(null=True, help_text="What it could do; empty: not recorded.")
    measured_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["model__name", "neuron__name"]
        constraints = [
            unique("model", "neuron", name="load_measurement_unique_on_neuron"),
            one_of("device_kind", ["cpu", "cuda"], "load_measurement_device_kind_known"),
        ]

    def __str__(self) -> str:
        return f"{self.model.name} on {self.neuron.name}"

    @property
    def prefill_speed(self) -> PrefillSpeed | None:
        if self.prefill_token_s is None or self.prefill_growth_s is None:
            return None
        return PrefillSpeed(
            token_s=self.prefill_token_s,
            growth_s=self.prefill_growth_s,
            window_tokens=self.prefill_window_tokens,
        )

    def measured_load(self) -> MeasuredLoad:
        """Reads the neuron: prefetch it when building many."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(MeasuredLoad)}
        if self.capabilities is not None:
            values["capabilities"] = tuple(self.capabilities)
        return MeasuredLoad(**values | {"neuron": self.neuron.name})
