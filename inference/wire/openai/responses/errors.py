"""Errors of the Responses dialect: OpenAI's envelope, and an event. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from inference.wire.errors import ApiError
from inference.wire.openai.errors import KEEP_ALIVE_FRAME, error_object

__all__ = ["KEEP_ALIVE_FRAME", "error_body", "error_event", "error_frame", "named_frame"]

PARAM_NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}


def error_body(error: ApiError, *, request_id: str) -> bytes:
    return orjson.dumps(error_object(error, PARAM_NAMES))


def error_frame(error: ApiError, *, request_id: str) -> bytes:
    """The frame for a stream without an event so far; an encoder that has begun ends its own."""
    return named_frame(*error_event(error), sequence_number=0)


def error_event(error: ApiError) -> tuple[str, dict[str, Any]]:
    """Flat, as the reference documents it, and nested, as OpenAI sends it and its SDKs raise it."""
    fields = {
        "code": error.code,
        "message": error.message,
        "param": error.param_in(PARAM_NAMES),
    }
    return "error", {**fields, "error": {"type": error.type, **fields, **error.extras}}


def named_frame(kind: str, fields: dict[str, Any], sequence_number: int) -> bytes:
    data = orjson.dumps({"type": kind, **fields, "sequence_number": sequence_number})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
