"""Errors of Ollama's dialect: one line, ``{"error": …}``. Pure.

The code and the field are helexa's additions; Ollama's clients read ``error`` alone.
"""

from __future__ import annotations

import orjson

from inference.wire.errors import ApiError

PARAM_NAMES = {"stop": "options.stop", "max_tokens": "options.num_predict"}
KEEP_ALIVE_FRAME = b""
"""JSON lines have no comments: the consumer sends an empty answer."""


def error_body(error: ApiError, *, request_id: str) -> bytes:
    fields = {"error": error.message, "code": error.code, "param": error.param_in(PARAM_NAMES)}
    return orjson.dumps(fields | error.extras)


def error_frame(error: ApiError, *, request_id: str) -> bytes:
    return error_body(error, request_id=request_id) + b"\n"
