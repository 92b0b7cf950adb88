"""How the Responses dialect says that something went wrong: OpenAI's envelope, an event of its own.

Pure.
"""

from __future__ import annotations

from inference.wire.errors import ApiError
from inference.wire.openai_errors import KEEP_ALIVE_FRAME, error_body
from inference.wire.openai_responses_events import error_event, named_frame

__all__ = ["KEEP_ALIVE_FRAME", "error_body", "error_frame"]


def error_frame(error: ApiError, *, request_id: str) -> bytes:
    """For a stream in which no event has been sent; an encoder that has begun ends its own."""
    return named_frame(*error_event(error), sequence_number=0)
