"""Errors of Ollama's dialect: one line, ``{"error": …}``. Pure.

The code and the field are helexa's additions; Ollama's clients read ``error`` alone.
"""

from __future__ import annotations

import orjson

from inference.wire.common.failure_params import OLLAMA_NAMES, param_of
from inference.wire.errors import ApiError

KEEP_ALIVE_FRAME = b""
"""A stream of JSON lines has no comment line: its consumer sends an empty answer."""


def error_body(error: ApiError, *, request_id: str) -> bytes:
    fields = {"error": error.message, "code": error.code, "param": param_of(error, OLLAMA_NAMES)}
    return orjson.dumps(fields | error.extras)


def error_frame(error: ApiError, *, request_id: str) -> bytes:
    return error_body(error, request_id=request_id) + b"\n"
