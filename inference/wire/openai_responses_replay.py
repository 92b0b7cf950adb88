"""A stored response told as a stream, to whoever comes too late for its own events.

    from the beginning    created ─▶ each item added and done ─▶ completed | incomplete | failed
    after some event      completed | incomplete | failed: it carries everything

Deltas are not stored, so an item comes whole. Pure.
"""

from __future__ import annotations

from typing import Any

from inference.protocol.events import Failure
from inference.wire.errors import RequestFailedError
from inference.wire.openai_responses_errors import error_event, named_frame
from inference.wire.openai_responses_output import NamedEvent

UNSAID = ("completed_at", "error", "incomplete_details", "usage")
"""Fields that a response has not got while it has only begun."""


def replay(response: dict[str, Any], starting_after: int | None) -> bytes:
    """``response`` has ended."""
    events = [] if starting_after is not None else _opening(response)
    events += _ending(response)
    first = 0 if starting_after is None else starting_after + 1
    return b"".join(
        named_frame(kind, fields, number) for number, (kind, fields) in enumerate(events, first)
    )


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


def _ending(response: dict[str, Any]) -> list[NamedEvent]:
    """OpenAI names no event for a cancelled one but ``error``."""
    if response["status"] == "cancelled":
        cancelled = Failure(code="cancelled", message="The response was cancelled.")
        return [error_event(RequestFailedError(cancelled))]
    return [(f"response.{response['status']}", {"response": response})]
