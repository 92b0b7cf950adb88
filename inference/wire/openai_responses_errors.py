"""How the Responses dialect says that something went wrong: OpenAI's envelope, an event of its own.

Pure.
"""

from __future__ import annotations

from typing import Any

import orjson

from inference.wire.errors import ApiError
from inference.wire.openai_errors import KEEP_ALIVE_FRAME, error_object

__all__ = ["KEEP_ALIVE_FRAME", "error_body", "error_event", "error_frame", "named_frame"]

FIELD_NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}
"""What a neuron names, by what this dialect calls it."""


def error_body(error: ApiError, *, request_id: str) -> bytes:
    said = error_object(error)
    said["error"]["param"] = _param(error)
    return orjson.dumps(said)


def error_frame(error: ApiError, *, request_id: str) -> bytes:
    """For a stream in which no event has been sent; an encoder that has begun ends its own."""
    return named_frame(*error_event(error), sequence_number=0)


def error_event(error: ApiError) -> tuple[str, dict[str, Any]]:
    """Flat, as the reference documents it, and nested, as OpenAI sends it and its SDKs raise it."""
    said = {"code": error.code, "message": error.message, "param": _param(error)}
    return "error", {**said, "error": {"type": error.type, **said}}


def named_frame(kind: str, fields: dict[str, Any], sequence_number: int) -> bytes:
    data = orjson.dumps({"type": kind, **fields, "sequence_number": sequence_number})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _param(error: ApiError) -> str | None:
    """A parser's own refusals name this dialect's fields already, but for fields it does not have:
    those are named as the client wrote them."""
    if error.code == "unsupported_parameter" or error.param is None:
        return error.param
    return FIELD_NAMES.get(error.param, error.param)
