"""Figures of one subject in one step of time. Written by ``metering.series.store``.

Models, neurons and accounts are names, not foreign keys: a row outlives what it names.
"""

from __future__ import annotations

from django.db import models

from metering.series.steps import Kind


class SeriesRow(models.Model):
    step_s = models.PositiveIntegerField()
    at = models.DateTimeField(help_text="When its step begins.")
    kind = models.CharField(max_length=8, choices=[(kind.value, kind.value) for kind in Kind])
    name = models.CharField(max_length=128, blank=True)
    requests = models.PositiveBigIntegerField(default=0)
    figures = models.JSONField(default=dict)

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(fields=["kind", "name", "at", "step_s"], name="series_row_once")
        ]
        indexes = [models.Index(fields=["step_s", "at"], name="series_row_age")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.at:%Y-%m-%d %H:%M}".replace("  ", " ")
