"""Replays a stored response as a stream, for a client that missed its own events.

    from the beginning    created ─▶ each item added and done ─▶ completed | incomplete | failed
    after some event      completed | incomplete | failed: it carries everything

Deltas are not stored, so an item comes whole. The closing event keeps the number that it had in the
first stream: a client that resumes drops every event up to the last one it has seen. Pure.
"""

from __future__ import annotations

from typing import Any

from inference.protocol.events import Failure
from inference.wire.errors import RequestFailedError
from inference.wire.openai.responses.errors import error_event, named_frame
from inference.wire.openai.responses.output import NamedEvent

UNSAID = ("completed_at", "error", "incomplete_details", "usage")
"""Fields that a response has not got while it has only begun."""

UNKNOWN_LAST_NUMBER = 2**31 - 1
"""The number of a closing event whose own is not stored: above any that a client has seen."""


def replay(
    response: dict[str, Any], starting_after: int | None, *, last_number: int | None
) -> bytes:
    """``response`` has ended. ``last_number``: of its first stream's closing event, if known."""
    opening = [] if starting_after is not None else _opening(response)
    frames = [named_frame(kind, fields, number) for number, (kind, fields) in enumerate(opening)]
    kind, fields = _ending(response)
    return b"".join(frames) + named_frame(
        kind, fields, _closing_number(starting_after, last_number)
    )


def _closing_number(starting_after: int | None, last_number: int | None) -> int:
    if starting_after is None:
        return UNKNOWN_LAST_NUMBER if last_number is None else last_number
    return max(starting_after + 1, last_number or 0)


def _opening(response: dict[str, Any]) -> list[NamedEvent]:
    begun = {**response, **dict.fromkeys(UNSAID), "status": "in_progress", "output": []}
    events: list[NamedEvent] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item": item}
        events += [
            ("response.output_item.added", place),
            ("response.output_item.done", place),
        ]
    return events


def _ending(response: dict[str, Any]) -> NamedEvent:
    """OpenAI names no event for a cancelled one but ``error``."""
    if response["status"] == "cancelled":
        cancelled = Failure(code="cancelled", message="The response was cancelled.")
        return error_event(RequestFailedError(cancelled))
    return f"response.{response['status']}", {"response": response}
