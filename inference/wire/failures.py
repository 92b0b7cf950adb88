"""The HTTP answer to each failure of a neuron, of placement or of an upstream.

An upstream's message about the caller's own request is passed on; never one about the operator's
key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from inference.protocol.events import Failure


@dataclass(frozen=True, slots=True)
class FailureKind:
    status: int
    type: str
    retry_after_s: float | None = None


_BAD_REQUEST = FailureKind(400, "invalid_request_error")
BROKEN = FailureKind(500, "server_error")
_BUSY = FailureKind(503, "server_error", 1.0)
_COMING_BACK = FailureKind(503, "server_error", 5.0)
_NOT_LOADABLE = FailureKind(503, "server_error", 30.0)
_NEVER_LOADS = FailureKind(422, "invalid_request_error")
"""SDKs repeat a 503, and each repetition would load it again."""

FAILURES: dict[str, FailureKind] = {
    # the request's fault
    "context_length_exceeded": _BAD_REQUEST,
    "bad_token_id": _BAD_REQUEST,
    "invalid_value": _BAD_REQUEST,
    "unsupported_parameter": _BAD_REQUEST,
    "vision_unsupported": _BAD_REQUEST,
    "invalid_image": _BAD_REQUEST,
    "empty_prompt": _BAD_REQUEST,
    "invalid_schema": _BAD_REQUEST,
    "invalid_grammar": _BAD_REQUEST,
    "template_limit_exceeded": _BAD_REQUEST,
    "model_not_found": FailureKind(404, "invalid_request_error"),
    "template_render_failed": FailureKind(422, "invalid_request_error"),
    # more than the account's limits
    "insufficient_quota": FailureKind(429, "insufficient_quota"),
    "rate_limit_exceeded": FailureKind(429, "requests", 1.0),
    # too much load
    "queue_full": _BUSY,
    "queue_timeout": _BUSY,
    "deadline_exceeded": _BUSY,
    "out_of_memory": _BUSY,
    "cancelled": _BUSY,
    # an upstream's answer
    "upstream_refused": _BAD_REQUEST,
    "upstream_failed": FailureKind(502, "server_error"),
    "upstream_unavailable": _COMING_BACK,
    # temporary failures
    "engine_crashed": _COMING_BACK,
    "engine_hung": _COMING_BACK,
    "device_fault": _COMING_BACK,
    "recovering": _COMING_BACK,
    "model_recovering": _COMING_BACK,
    "neuron_lost": _COMING_BACK,
    "neuron_stopping": _COMING_BACK,
    "no_neuron": _COMING_BACK,
    "image_lost": _BUSY,
    "redis_unavailable": _BUSY,
    "model_not_loaded": _COMING_BACK,
    "model_loading": _COMING_BACK,
    "draining": _COMING_BACK,
    "shutting_down": _COMING_BACK,
    "fleet_unavailable": _COMING_BACK,
    # the model is unavailable now
    "not_enough_memory": _NOT_LOADABLE,
    "does_not_fit": _NOT_LOADABLE,
    "disk_full": _NOT_LOADABLE,
    "no_device": _NOT_LOADABLE,
    "cuda_unavailable": _NOT_LOADABLE,
    "lost_its_room": _COMING_BACK,
    "load_failed": _NOT_LOADABLE,
    "model_load_failed": _NOT_LOADABLE,
    "download_failed": _NOT_LOADABLE,
    "load_stalled": _NOT_LOADABLE,
    "stage_unreachable": _NOT_LOADABLE,
    # … until the operator changes its entry, its files or the hosts
    "repo_fetch_failed": _NEVER_LOADS,
    "exceeds_device": _NEVER_LOADS,
    "unknown_architecture": _NEVER_LOADS,
    "missing_file": _NEVER_LOADS,
    "quantization_not_found": _NEVER_LOADS,
    "hash_mismatch": _NEVER_LOADS,
    "bad_source": _NEVER_LOADS,
    "bad_setting": _NEVER_LOADS,
    "bad_file": _NEVER_LOADS,
    # our own fault
    "numerical_error": BROKEN,
    "engine_error": BROKEN,
    # the request crashed its worker
    "request_broke_worker": BROKEN,
}
"""Other codes are answered as 500: the client cannot fix them."""

NOT_REPEATED = frozenset({"request_broke_worker"})
"""SDKs repeat a 500 unless told not to, and each repetition would crash another worker."""


def failure_extras(failure: Failure) -> dict[str, str | int]:
    extras: dict[str, str | int] = {}
    if failure.too_long is not None:
        extras["prompt_len"] = failure.too_long.prompt_tokens
        extras["max"] = failure.too_long.context_tokens
    if failure.model_id:
        extras["model_id"] = failure.model_id
    if failure.suggestion:
        extras["suggestion"] = failure.suggestion
    return extras


UPSTREAM_FAILED, UPSTREAM_UNAVAILABLE = "upstream_failed", "upstream_unavailable"
UPSTREAM_REFUSED = "upstream_refused"
LIMITED = "rate_limit_exceeded"
TOO_LONG = "context_length_exceeded"
CALLERS = frozenset({400, 413, 415, 422})
OVERLOADED = (UPSTREAM_UNAVAILABLE, "is overloaded")
REASONS = {
    401: (UPSTREAM_FAILED, "does not accept its key"),
    403: (UPSTREAM_FAILED, "does not accept its key"),
    404: (UPSTREAM_FAILED, "has no such model or path"),
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


def upstream_failure(
    upstream: str,
    status: int,
    body: bytes,
    *,
    retry_after: str | None,
    secret: str,
    date: str | None = None,
) -> Failure:
    """``retry_after`` and ``date`` are headers. The message never contains ``secret``."""
    if status in CALLERS:
        return _callers(upstream, _object(body), secret)
    code, reason = REASONS.get(status, (UPSTREAM_FAILED, f"failed with status {status}"))
    return Failure(
        code=code,
        message=f"The upstream {upstream} {reason}.",
        retry_after_s=None if code == UPSTREAM_FAILED else _seconds(retry_after, date),
    )


def upstream_failure_in_stream(upstream: str, error: Any, *, secret: str) -> Failure:
    found = error if isinstance(error, dict) else {}
    status = _status(found)
    if status is None:
        return Failure(
            code=UPSTREAM_FAILED, message=f"The upstream {upstream} failed in its answer."
        )
    body = orjson.dumps({"error": found})
    return upstream_failure(upstream, status, body, retry_after=None, secret=secret)


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
        code=TOO_LONG if is_long else UPSTREAM_REFUSED,
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
    """A date counts by the upstream's clock (RFC 9110, 10.2.3)."""
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
