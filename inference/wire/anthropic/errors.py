"""Errors of Anthropic's dialect.

    {"type": "error", "error": {"type", "message", "details"}, "request_id"}

``type`` is that API's word for the status; ``details.error_code`` is our code. Pure.
"""

from __future__ import annotations

from typing import Any

import orjson

from inference.wire.errors import ApiError

KEEP_ALIVE_FRAME = b'event: ping\ndata: {"type":"ping"}\n\n'

PARAM_NAMES = {"prompt": "messages", "stop": "stop_sequences"}
TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic answers 529 when overloaded. Here it stays 503, as in every other dialect: clients use
the type and ``Retry-After``, and retry every status from 500 up."""

TOO_LONG = "prompt is too long: "
"""Clients of that API look for this before they shorten a conversation."""


def error_object(error: ApiError, *, request_id: str) -> dict[str, Any]:
    message = error.message
    if error.code == "context_length_exceeded":
        message = TOO_LONG + message
    details = {
        "error_code": error.code,
        "param": error.param_in(PARAM_NAMES),
        **error.extras,
    }
    return {
        "type": "error",
        "error": {"type": _type(error.status), "message": message, "details": details},
        "request_id": request_id,
    }


def error_body(error: ApiError, *, request_id: str) -> bytes:
    return orjson.dumps(error_object(error, request_id=request_id))


def error_frame(error: ApiError, *, request_id: str) -> bytes:
    return b"event: error\ndata: " + error_body(error, request_id=request_id) + b"\n\n"


def _type(status: int) -> str:
    return TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
