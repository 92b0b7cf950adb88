"""What requests used: append-only entries, and their hourly sums. Written by
``metering.ledger.writer``.

Accounts, keys and models are names, not foreign keys: the ledger outlives their rows.
"""

from __future__ import annotations

from django.db import models


class LedgerEntry(models.Model):
    request_id = models.CharField(max_length=64, unique=True)
    at = models.DateTimeField(db_index=True, help_text="When it ended.")
    account = models.CharField(max_length=64)
    key = models.CharField(max_length=16, blank=True)
    model = models.CharField(max_length=100)
    neuron = models.CharField(max_length=100, blank=True)
    endpoint = models.CharField(max_length=40)
    client = models.CharField(max_length=32, blank=True)
    outcome = models.CharField(max_length=64)
    prompt_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    completion_tokens = models.PositiveBigIntegerField()
    reasoning_tokens = models.PositiveBigIntegerField()
    cost_micro_usd = models.PositiveBigIntegerField()
    time_to_first_token_ms = models.PositiveIntegerField(null=True, blank=True)
    duration_ms = models.PositiveBigIntegerField()
    unit = models.CharField(
        max_length=9,
        blank=True,
        default="",
        db_default="",
        help_text="What a request without tokens is metered by: request, second, character, image.",
    )
    num_units = models.PositiveBigIntegerField("units", default=0, db_default=0)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name_plural = "ledger entries"
        indexes = [
            models.Index(fields=["account", "at"], name="ledger_account_at"),
            models.Index(fields=["key", "at"], name="ledger_key_at"),
        ]

    def __str__(self) -> str:
        return self.request_id


class UsageHour(models.Model):
    """The sum of an hour's entries of one account, key and model; written with them."""

    hour = models.DateTimeField()
    account = models.CharField(max_length=64)
    key = models.CharField(max_length=16, blank=True)
    model = models.CharField(max_length=100)
    requests = models.PositiveBigIntegerField(default=0)
    failed_requests = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    cost_micro_usd = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-hour"]
        constraints = [
            models.UniqueConstraint(
                fields=["hour", "account", "key", "model"], name="usage_hour_once"
            ),
        ]
