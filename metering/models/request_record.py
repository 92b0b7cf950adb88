"""One row for each request that reached a gateway, refused ones too. Written by
``metering.request_records``, for people who look for a request; money follows from the ledger.

Accounts, keys and models are names, not foreign keys: a row outlives what it names. ``end_user``
and ``code`` are null where there is none, so that the partial indexes over them are small.
"""

from __future__ import annotations

from django.db import models

from metering.ledger.entries import Outcome


class RequestRecord(models.Model):
    request_id = models.UUIDField(unique=True)
    at = models.DateTimeField(help_text="When it ended.")
    account = models.CharField(max_length=64, blank=True)
    key = models.CharField(max_length=16, blank=True)
    end_user = models.CharField(max_length=128, null=True, blank=True)
    model_asked = models.CharField(max_length=200, blank=True)
    model = models.CharField(max_length=100, blank=True)
    neuron = models.CharField(max_length=100, blank=True)
    endpoint = models.CharField(max_length=40)
    client = models.CharField(max_length=32, blank=True)
    status = models.PositiveSmallIntegerField(help_text="Of the HTTP response; 0: none was sent.")
    outcome = models.CharField(
        max_length=9, choices=[(outcome.value, outcome.value) for outcome in Outcome]
    )
    code = models.CharField(max_length=64, null=True, blank=True)
    message = models.CharField(max_length=500, blank=True)
    queue_ms = models.PositiveBigIntegerField(null=True, blank=True)
    time_to_first_token_ms = models.PositiveBigIntegerField(null=True, blank=True)
    duration_ms = models.PositiveBigIntegerField()
    prompt_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    completion_tokens = models.PositiveBigIntegerField()
    reasoning_tokens = models.PositiveBigIntegerField()
    cost_micro_usd = models.PositiveBigIntegerField()
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
