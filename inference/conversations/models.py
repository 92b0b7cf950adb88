"""Stored responses. Tables only: every write goes through ``services``.

queued ─▶ in_progress ─▶ completed | incomplete | failed          a background response
   └──────────┴────────▶ cancelled | failed
                         completed | incomplete | failed          any other: stored at its end

A row's two documents are JSON as text, not the database's own JSON: PostgreSQL's refuses U+0000,
which a model may generate, and keeps neither the order of keys nor the way numbers are written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.db import models

MAX_ID_CHARS = 64
ACTIVE = ("queued", "in_progress")
ENDED = ("completed", "incomplete", "failed", "cancelled")
STATUSES = (*ACTIVE, *ENDED)
CONTINUABLE = ("completed", "incomplete")

MAX_CHAIN = 1000
"""The whole text of a conversation is read at each turn."""

_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRecord:
    """Only its ``account`` finds it. ``previous_id`` may have been deleted since.
    ``last_event_number`` is the closing event's; ``None``: unknown. ``presumed_lost_by``: the
    gateway whose lease on it has expired; such a response reads as failed."""

    account: str
    response: dict[str, Any]
    input_items: list[dict[str, Any]]
    previous_id: str | None
    background: bool
    last_event_number: int | None = None
    presumed_lost_by: str | None = None

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def status(self) -> str:
        return str(self.response["status"])

    @property
    def output_items(self) -> list[dict[str, Any]]:
        output: list[dict[str, Any]] = self.response["output"]
        return output


def is_response_id(text: str) -> bool:
    return _RESPONSE_ID.fullmatch(text) is not None


class ConversationError(Exception):
    """``message`` is for clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class PreviousResponseMissingError(ConversationError):
    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.")


class StoredResponse(models.Model):
    """A response whose lease has expired and whose gateway is gone reads as failed."""

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
