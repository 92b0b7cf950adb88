"""A stored response for the gateway, its status, and reasons why a request cannot continue it.
Pure.

queued ─▶ in_progress ─▶ completed | incomplete | failed          a background response
   └──────────┴────────▶ cancelled | failed
                         completed | incomplete | failed          any other: stored at its end
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

ACTIVE = ("queued", "in_progress")
ENDED = ("completed", "incomplete", "failed", "cancelled")
STATUSES = (*ACTIVE, *ENDED)
CONTINUABLE = ("completed", "incomplete")

MAX_CHAIN = 1000
"""The most responses of one conversation, whose whole text is read at each turn."""

_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRecord:
    """``response`` and ``input_items`` are shown by the API; ``previous_id`` is the response it
    continues, which may have been deleted since. Only its ``account`` finds it.
    ``last_event_number``: of the closing event of its stream, once it has ended; ``None`` where
    unknown. ``presumed_lost_by``: the id of the gateway whose lease on it has expired; such a
    response reads as failed."""

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
    """Raised where a request cannot continue a response; ``message`` is for clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class PreviousResponseMissingError(ConversationError):
    """Raised where it, or one that it builds on, is not there."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.")
