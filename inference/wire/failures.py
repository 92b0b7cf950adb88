"""The answer to each failure of a neuron or of placement: status, type, and when to retry. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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
