"""Usage reports of neurons that cannot be settled. Written by ``metering.ledger.settlement``."""

from __future__ import annotations

from django.db import models


class SetAsideReport(models.Model):
    """A report that does not fit what its request was sent with. No account is charged by it."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    neuron = models.CharField(max_length=100, db_index=True)
    reason = models.CharField(max_length=500)
    request_id = models.CharField(
        max_length=64, blank=True, help_text="Where its receipt is genuine."
    )
    account = models.CharField(max_length=64, blank=True)
    num_more = models.PositiveBigIntegerField(
        default=0,
        verbose_name="more like it",
        help_text="How many reports of this neuron came after it and have no row of their own.",
    )

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name = "usage report set aside"
        verbose_name_plural = "usage reports set aside"

    def __str__(self) -> str:
        return f"{self.neuron}: {self.reason}"
