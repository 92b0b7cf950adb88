"""What happened: ledger entries and their hourly sums, request records and captured bodies, series,
and the audit.

Accounts, keys and models are names, not foreign keys: a row outlives what it names.
"""

from __future__ import annotations

from django.db import models

from metering.ledger.entries import Outcome
from metering.series.steps import Kind


class RequestColumns(models.Model):
    key = models.CharField(max_length=16, blank=True)
    neuron = models.CharField(max_length=100, blank=True)
    endpoint = models.CharField(max_length=40)
    client = models.CharField(max_length=32, blank=True)
    prompt_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    completion_tokens = models.PositiveBigIntegerField()
    reasoning_tokens = models.PositiveBigIntegerField()
    cost_micro_usd = models.PositiveBigIntegerField()
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
        abstract = True


class LedgerEntry(RequestColumns):
    request_id = models.CharField(max_length=64, unique=True)
    at = models.DateTimeField(db_index=True, help_text="When it ended.")
    account = models.CharField(max_length=64)
    model = models.CharField(max_length=100)
    outcome = models.CharField(max_length=64)
    time_to_first_token_ms = models.PositiveIntegerField(null=True, blank=True)

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


class RequestRecord(RequestColumns):
    """One row for each request that reached a gateway, refused ones too: for people who look for a
    request. ``end_user`` and ``code`` are null where there is none, so that the partial indexes
    over them are small."""

    request_id = models.UUIDField(unique=True)
    at = models.DateTimeField(help_text="When it ended.")
    account = models.CharField(max_length=64, blank=True)
    end_user = models.CharField(max_length=128, null=True, blank=True)
    model_asked = models.CharField(max_length=200, blank=True)
    model = models.CharField(max_length=100, blank=True)
    status = models.PositiveSmallIntegerField(help_text="Of the HTTP response; 0: none was sent.")
    outcome = models.CharField(
        max_length=9, choices=[(outcome.value, outcome.value) for outcome in Outcome]
    )
    code = models.CharField(max_length=64, null=True, blank=True)
    message = models.CharField(max_length=500, blank=True)
    queue_ms = models.PositiveBigIntegerField(null=True, blank=True)
    time_to_first_token_ms = models.PositiveBigIntegerField(null=True, blank=True)
    is_usage_estimated = models.BooleanField(
        default=False,
        db_default=False,
        help_text="An upstream did not report the tokens: they are estimated.",
    )
    targets_tried = models.CharField(
        max_length=500,
        blank=True,
        default="",
        db_default="",
        help_text="The model's targets that it left, each with its error's code.",
    )

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            # What follows the time is compared within the index, so that two filters which match
            # many rows each, and none together, do not read those rows. PostgreSQL takes two
            # names that never meet for ones that often do, and walks back in time for the first
            # of them: the index by time has every name.
            models.Index(fields=["at", "account", "model", "neuron", "status"], name="request_at"),
            models.Index(
                fields=["account", "at", "key", "model", "neuron"], name="request_account"
            ),
            models.Index(fields=["model", "at", "neuron"], name="request_model"),
            models.Index(
                fields=["end_user", "at"],
                name="request_end_user_at",
                condition=models.Q(end_user__isnull=False),
            ),
            *(
                models.Index(
                    fields=[field, "at"],
                    name=f"request_{field}_at",
                    condition=models.Q(code__isnull=False),
                )
                for field in ("code", "status", "outcome")
            ),
        ]

    def __str__(self) -> str:
        return self.request_id.hex


class CapturedRequest(models.Model):
    """The captured bodies of the ``RequestRecord`` with the same ``request_id``: masked and cut."""

    request_id = models.UUIDField(unique=True)
    at = models.DateTimeField(db_index=True, help_text="When it ended.")
    headers = models.TextField(blank=True)
    request = models.TextField(blank=True)
    answer = models.TextField(blank=True)
    trace = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.request_id.hex


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


class AuditEntry(models.Model):
    """``actor`` reads ``user:alice``, ``key:hx-…``, ``command``, ``gateway`` or ``control``."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=64, help_text="As in key.create or model.update.")
    object_id = models.CharField(max_length=200)
    detail = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["object_id", "at"], name="audit_object_at")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_id}"
