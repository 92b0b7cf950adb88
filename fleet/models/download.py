"""Downloads: the durable record of fetching a model's files to a neuron, or deleting them there,
without loading anything."""

from __future__ import annotations

import uuid

from django.db import models

from fleet.lifecycles import DownloadKind, LoadJobStatus
from fleet.live.snapshot import remaining_s
from fleet.models.job import ACTIVE, Job, status_constraints
from fleet.models.neuron import Neuron

PULLS = models.Q(kind=DownloadKind.PULL)


class Download(Job):
    """A pull of a model's files to a neuron, or their deletion there. On a neuron at most one pull
    of the same files is active. It moves by the table of load jobs;
    ``fleet.services.model_files.download_moves`` moves it. Neurons know it by its id."""

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
    cancel_wanted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["status", "-created_at"], name="download_status_newest")]
        constraints = [
            models.UniqueConstraint(
                fields=["neuron", "source", "file", "revision"],
                condition=ACTIVE & PULLS,
                name="download_one_active_pull",
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=DownloadKind.values), name="download_kind_known"
            ),
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
        """Seconds that it still takes by its rate so far; ``None`` when unknown."""
        if not self.is_active or self.started_at is None or self.reported_at is None:
            return None
        elapsed_s = (self.reported_at - self.started_at).total_seconds()
        return remaining_s(elapsed_s, self.bytes_done, self.bytes_total)
