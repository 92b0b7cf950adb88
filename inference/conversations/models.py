"""Database tables of stored responses. Rows only: every write goes through ``services``.

The two documents are JSON as text, not the database's own JSON: PostgreSQL's refuses U+0000, which
a model may generate, and keeps neither the order of keys nor the way numbers are written.
"""

from __future__ import annotations

from django.db import models

from inference.conversations.records import ACTIVE, STATUSES

MAX_ID_CHARS = 64


class StoredResponse(models.Model):
    """A stored response of an account. While a background response runs its gateway renews
    ``lease_until``. One whose lease has expired is lost where that gateway is gone, and reads as
    failed."""

    id = models.CharField(max_length=MAX_ID_CHARS, primary_key=True)
    account = models.CharField(
        max_length=64,
        default="anonymous",
        db_index=True,
        help_text="Whose it is: nobody else finds it.",
    )
    model = models.CharField(max_length=256, help_text="As the client named it.")
    status = models.CharField(max_length=16, choices=[(word, word) for word in STATUSES])
    background = models.BooleanField(default=False)
    previous_id = models.CharField(
        max_length=MAX_ID_CHARS, blank=True, help_text="The response it continues; may be gone."
    )
    size_bytes = models.PositiveBigIntegerField(
        default=0, help_text="Of both documents, as they were first stored."
    )
    response_json = models.TextField()
    input_items_json = models.TextField()
    created_at = models.DateTimeField(db_index=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    gateway_id = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        help_text="Of the gateway that works on it.",
    )
    last_event_number = models.PositiveIntegerField(
        null=True, blank=True, help_text="Of its stream's closing event, where it is known."
    )

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=STATUSES), name="stored_response_status_known"
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=ACTIVE) ^ models.Q(lease_until__isnull=True),
                name="stored_response_leased_while_active",
            ),
        ]

    def __str__(self) -> str:
        return self.id
