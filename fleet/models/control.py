"""Which control leads, as the database counts it."""

from __future__ import annotations

from django.db import models


class ControlTerm(models.Model):
    """One row, of key 1. Written by ``fleet.control.leadership`` only."""

    number = models.PositiveBigIntegerField(default=0)
    control_id = models.CharField(max_length=255, blank=True)

    def __str__(self) -> str:
        return f"term {self.number}: {self.control_id}"
