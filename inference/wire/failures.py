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


BROKEN = FailureKind(500, "server_error")
_KINDS: tuple[tuple[FailureKind, str], ...] = (
    (
        FailureKind(400, "invalid_request_error"),
        "context_length_exceeded bad_token_id invalid_value unsupported_parameter empty_prompt "
        "vision_unsupported invalid_image invalid_schema invalid_grammar template_limit_exceeded "
        "upstream_refused",
    ),
    (FailureKind(404, "invalid_request_error"), "model_not_found"),
    # never loads until the operator changes its entry, its files or the hosts: SDKs repeat a 503,
    # and each repetition would load it again
    (
        FailureKind(422, "invalid_request_error"),
        "repo_fetch_failed exceeds_device unknown_architecture missing_file quantization_not_found "
        "hash_mismatch bad_source bad_setting bad_file template_render_failed",
    ),
    # more than the account's limits
    (FailureKind(429, "insufficient_quota"), "insufficient_quota"),
    (FailureKind(429, "requests", 1.0), "rate_limit_exceeded"),
    # too much load
    (
        FailureKind(503, "server_error", 1.0),
        "queue_full queue_timeout deadline_exceeded out_of_memory cancelled image_lost "
        "redis_unavailable",
    ),
    # temporary failures
    (
        FailureKind(503, "server_error", 5.0),
        "engine_crashed engine_hung device_fault recovering model_recovering neuron_lost "
        "neuron_stopping no_neuron model_not_loaded model_loading draining shutting_down "
        "fleet_unavailable lost_its_room upstream_unavailable",
    ),
    # the model is unavailable now
    (
        FailureKind(503, "server_error", 30.0),
        "not_enough_memory does_not_fit disk_full no_device cuda_unavailable load_failed "
        "model_load_failed download_failed load_stalled stage_unreachable",
    ),
    (FailureKind(502, "server_error"), "upstream_failed"),
    (BROKEN, "numerical_error engine_error request_broke_worker"),
)
FAILURES = {code: kind for kind, codes in _KINDS for code in codes.split()}
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
