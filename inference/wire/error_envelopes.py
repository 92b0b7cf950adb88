"""Errors in each dialect's own envelope: as a body, and as a frame of a stream that has begun.

Ollama's clients read ``error`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from inference.wire.dialect import WAITING_COMMENT
from inference.wire.errors import TOO_MANY_REQUESTS, ApiError, MethodNotAllowedError
from inference.wire.failures import NOT_REPEATED


class ErrorDialect:
    keep_alive_frame = WAITING_COMMENT
    param_names: Mapping[str, str] = {}
    frame = b"data: ", b"\n\n"

    def error_object(self, error: ApiError, *, request_id: str = "") -> dict[str, Any]:
        raise NotImplementedError

    def error_body(self, error: ApiError, *, request_id: str) -> bytes:
        return orjson.dumps(self.error_object(error, request_id=request_id))

    def error_frame(self, error: ApiError, *, request_id: str) -> bytes:
        begin, end = self.frame
        return begin + self.error_body(error, request_id=request_id) + end


def error_headers(error: ApiError) -> list[tuple[bytes, bytes]]:
    """SDKs retry every 429 and 500 unless ``x-should-retry`` is false."""
    headers = []
    is_final = error.status == TOO_MANY_REQUESTS and error.retry_after_s is None
    if is_final or error.code in NOT_REPEATED:
        headers.append((b"x-should-retry", b"false"))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allowed.encode()))
    return headers


class OpenAIErrors(ErrorDialect):
    def error_object(self, error: ApiError, *, request_id: str = "") -> dict[str, Any]:
        return {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param_in(self.param_names),
                "code": error.code,
                **error.extras,
            }
        }


class OpenAIResponsesErrors(OpenAIErrors):
    param_names = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}

    def error_frame(self, error: ApiError, *, request_id: str) -> bytes:
        """The first event of a stream; an encoder that has begun numbers its own."""
        return named_frame(*self.error_event(error), sequence_number=0)

    def error_event(self, error: ApiError) -> tuple[str, dict[str, Any]]:
        """Flat, as in the reference, and nested, as OpenAI sends it and its SDKs raise it."""
        fields = {
            "code": error.code,
            "message": error.message,
            "param": error.param_in(self.param_names),
        }
        return "error", {**fields, "error": {"type": error.type, **fields, **error.extras}}


def named_frame(kind: str, fields: dict[str, Any], sequence_number: int) -> bytes:
    data = orjson.dumps({"type": kind, **fields, "sequence_number": sequence_number})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic answers 529 when overloaded; its clients retry 503 as well."""

TOO_LONG = "prompt is too long: "
"""Anthropic's clients look for this before they shorten a conversation."""


class AnthropicErrors(ErrorDialect):
    keep_alive_frame = b'event: ping\ndata: {"type":"ping"}\n\n'
    param_names = {"prompt": "messages", "stop": "stop_sequences"}
    frame = b"event: error\ndata: ", b"\n\n"

    def error_object(self, error: ApiError, *, request_id: str = "") -> dict[str, Any]:
        other = "api_error" if error.status >= 500 else "invalid_request_error"
        is_too_long = error.code == "context_length_exceeded"
        return {
            "type": "error",
            "error": {
                "type": ANTHROPIC_TYPES.get(error.status, other),
                "message": TOO_LONG + error.message if is_too_long else error.message,
                "details": {
                    "error_code": error.code,
                    "param": error.param_in(self.param_names),
                    **error.extras,
                },
            },
            "request_id": request_id,
        }


class OllamaErrors(ErrorDialect):
    keep_alive_frame = b""
    """JSON lines have no comments: the consumer sends an empty answer."""
    param_names = {"stop": "options.stop", "max_tokens": "options.num_predict"}
    frame = b"", b"\n"

    def error_object(self, error: ApiError, *, request_id: str = "") -> dict[str, Any]:
        param = error.param_in(self.param_names)
        return {"error": error.message, "code": error.code, "param": param, **error.extras}


openai_errors = OpenAIErrors()
openai_responses_errors = OpenAIResponsesErrors()
anthropic_errors = AnthropicErrors()
ollama_errors = OllamaErrors()
