"""Errors of OpenAI's dialects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from inference.wire.dialect import WAITING_COMMENT
from inference.wire.errors import ApiError

KEEP_ALIVE_FRAME = WAITING_COMMENT
PARAM_NAMES: dict[str, str] = {}


def error_object(error: ApiError, names: Mapping[str, str] = PARAM_NAMES) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param_in(names),
            "code": error.code,
            **error.extras,
        }
    }


def error_body(error: ApiError, *, request_id: str) -> bytes:
    return orjson.dumps(error_object(error))


def error_frame(error: ApiError, *, request_id: str) -> bytes:
    return b"data: " + error_body(error, request_id=request_id) + b"\n\n"
