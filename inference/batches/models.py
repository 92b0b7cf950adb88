"""Tables only: every write goes through ``services``. Contents are on disk, in ``files``."""

from __future__ import annotations

from django.db import models

from inference.batches.records import DIALECTS, OPEN, STATUSES

MAX_ID_CHARS = 64


class StoredFile(models.Model):
    id = models.CharField(max_length=MAX_ID_CHARS, primary_key=True)
    account = models.CharField(
        max_length=64, db_index=True, help_text="Whose it is: nobody else finds it."
    )
    name = models.CharField(max_length=255, help_text="As the client called it.")
    purpose = models.CharField(max_length=32)
    size_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(
        null=True, blank=True, db_index=True, help_text="From then on it is not found."
    )

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return self.id


class Batch(models.Model):
    """After ``lease_until`` another gateway can claim the batch."""

    id = models.CharField(max_length=MAX_ID_CHARS, primary_key=True)
    account = models.CharField(max_length=64, db_index=True)
    key = models.CharField(max_length=64, blank=True, help_text="The key's public prefix.")
    dialect = models.CharField(max_length=16, choices=[(word, word) for word in DIALECTS])
    endpoint = models.CharField(max_length=64)
    status = models.CharField(max_length=16, choices=[(word, word) for word in STATUSES])
    input_file = models.CharField(max_length=MAX_ID_CHARS)
    output_file = models.CharField(max_length=MAX_ID_CHARS)
    error_file = models.CharField(max_length=MAX_ID_CHARS)
    num_total = models.PositiveIntegerField(default=0)
    num_completed = models.PositiveIntegerField(default=0)
    num_failed = models.PositiveIntegerField(default=0)
    num_expired = models.PositiveIntegerField(default=0)
    num_cancelled = models.PositiveIntegerField(default=0)
    metadata_json = models.TextField(default="{}")
    failure = models.TextField(blank=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    lease_holder = models.CharField(max_length=MAX_ID_CHARS, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name_plural = "batches"
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=STATUSES), name="batch_status_known"
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=OPEN) ^ models.Q(ended_at__isnull=False),
                name="batch_ended_once",
            ),
        ]
        indexes = [models.Index(fields=["status", "created_at"], name="batch_status_created")]

    def __str__(self) -> str:
        return self.id
