"""Converts an upstream's error to a failure of ours. Pure.

    400, 413, 415, 422     the caller's: 400, with the upstream's message
    429                    the same, with its Retry-After
    401, 403, 404          the operator's mistake: 502
    503, 529               503, with its Retry-After
    every other            502

A message about the caller's own request is passed on, shortened; never one about the upstream's
key.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from inference.protocol.events import Failure
from inference.wire.errors import RequestFailedError

FAILED, UNAVAILABLE = "upstream_failed", "upstream_unavailable"
REFUSED = "upstream_refused"
LIMITED = "rate_limit_exceeded"
TOO_LONG = "context_length_exceeded"
CALLERS = frozenset({400, 413, 415, 422})
OVERLOADED = (UNAVAILABLE, "is overloaded")
REASONS = {
    401: (FAILED, "does not accept its key"),
    403: (FAILED, "does not accept its key"),
    404: (FAILED, "has no such model or path"),
    429: (LIMITED, "has no room for more requests now"),
    503: OVERLOADED,
    529: OVERLOADED,
}
MAX_MESSAGE_CHARACTERS = 1_000
MAX_RETRY_AFTER_S = 3_600.0
CONTEXT_WORDS = (
    *("context length", "context_length", "context window", "maximum context"),
    "prompt is too long",
)
STATUS_OF_TYPE = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "invalid_request_error": 400,
    "request_too_large": 413,
    "overloaded_error": 529,
}


def failed(message: str, code: str = FAILED) -> RequestFailedError:
    return RequestFailedError(Failure(code=code, message=message))


def failure_of(
    upstream: str,
    status: int,
    body: bytes,
    *,
    retry_after: str | None,
    secret: str,
    date: str | None = None,
) -> Failure:
    """The failure for an unsuccessful answer. ``retry_after`` and ``date`` are its headers. No
    message of ours holds ``secret``."""
    if status in CALLERS:
        return _callers(upstream, _object(body), secret)
    code, reason = REASONS.get(status, (FAILED, f"failed with status {status}"))
    return Failure(
        code=code,
        message=f"The upstream {upstream} {reason}.",
        retry_after_s=None if code == FAILED else _seconds(retry_after, date),
    )


def failure_in_stream(upstream: str, error: Any, *, secret: str) -> Failure:
    found = error if isinstance(error, dict) else {}
    status = _status(found)
    if status is None:
        return Failure(code=FAILED, message=f"The upstream {upstream} failed in its answer.")
    body = orjson.dumps({"error": found})
    return failure_of(upstream, status, body, retry_after=None, secret=secret)


def _status(error: dict[str, Any]) -> int | None:
    for name in ("status", "code", "status_code"):
        value = error.get(name)
        if type(value) is int and 400 <= value < 600:
            return value
        if isinstance(value, str) and value in STATUS_OF_TYPE:
            return STATUS_OF_TYPE[value]
    kind = error.get("type")
    return STATUS_OF_TYPE.get(kind) if isinstance(kind, str) else None


def _callers(upstream: str, error: dict[str, Any], secret: str) -> Failure:
    message = _message(error, secret)
    is_long = error.get("code") == TOO_LONG or any(
        word in message.lower() for word in CONTEXT_WORDS
    )
    param = error.get("param")
    return Failure(
        code=TOO_LONG if is_long else REFUSED,
        message=f"The upstream {upstream} refuses this request: {message or 'without a reason'}",
        param=param if isinstance(param, str) and len(param) <= 200 else None,
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    error = found.get("error", found)
    return error if isinstance(error, dict) else {"message": error}


def _message(error: dict[str, Any], secret: str) -> str:
    message = error.get("message")
    if not isinstance(message, str):
        return ""
    if secret:
        message = message.replace(secret, "***")
    plain = "".join(one if one.isprintable() else " " for one in message)
    return plain[:MAX_MESSAGE_CHARACTERS]


def _seconds(retry_after: str | None, date: str | None) -> float | None:
    """A header's seconds, or its date less that of the answer, both by the upstream's clock (RFC
    9110, 10.2.3). ``None``: it has neither."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        until, now = _moment(retry_after), _moment(date)
        if until is None or now is None:
            return None
        seconds = max(0.0, (until - now).total_seconds())
    return min(seconds, MAX_RETRY_AFTER_S) if seconds >= 0 else None


def _moment(date: str | None) -> datetime | None:
    try:
        moment = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
