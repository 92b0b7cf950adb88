"""What is told of a request's end: one line in the log, the metrics, the ledger. Nothing else
keeps an idea of its own of how a request ended."""

from __future__ import annotations

import logging
from collections.abc import Callable

from inference.gateway.metrics.requests import Metrics
from inference.gateway.request.call import NO_MODEL, RequestOutcome

logger = logging.getLogger("helexa.requests")

PROBES = frozenset({"/health"})
"""Asked every few seconds by whatever watches a gateway: their lines would bury the others."""

SERVER_ERRORS = frozenset({500, 502, 503, 504})
UNAVAILABLE = 503
BUSY = frozenset({"queue_full", "queue_timeout"})
MAX_CAUSE_CHARACTERS = 300

Listener = Callable[[RequestOutcome], None]


class Outcomes:
    """``listeners`` are called in their order; one that fails does not keep the others from it."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = (log, *listeners)

    def tell(self, outcome: RequestOutcome) -> None:
        for listener in (log,) if outcome.is_self_test else self._listeners:
            try:
                listener(outcome)
            except Exception:
                logger.exception("the end of request %s is not recorded", outcome.request_id)


def counted_by(metrics: Metrics) -> Listener:
    def count(outcome: RequestOutcome) -> None:
        usage = outcome.usage
        metrics.observe(
            model=None if outcome.model == NO_MODEL else outcome.model,
            node=outcome.neuron,
            account=outcome.account or None,
            key=outcome.key,
            status_code=outcome.status,
            code=outcome.outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            duration_s=outcome.duration_s,
            time_to_first_token_s=outcome.time_to_first_token_s,
            cold_start=outcome.was_cold,
        )

    return count


def log(outcome: RequestOutcome) -> None:
    """Holds no client's text: the model is the catalogue's name, the client one of a fixed set, and
    only failures of the server have their cause with them."""
    usage, is_ours = outcome.usage, _is_ours(outcome)
    logger.log(
        _level(outcome, is_ours),
        "%s %s %s/%s model=%s neuron=%s client=%s status=%d %s prompt=%d cached=%d completion=%d "
        "ms=%.0f%s",
        outcome.request_id,
        outcome.endpoint,
        outcome.account or "-",
        outcome.key or "-",
        outcome.model,
        outcome.neuron or "-",
        outcome.client or "-",
        outcome.status,
        outcome.outcome,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        outcome.duration_s * 1000,
        f" cause={outcome.error_message:.{MAX_CAUSE_CHARACTERS}}" if is_ours else "",
        extra={"request": _fields(outcome, is_ours)},
    )


def _level(outcome: RequestOutcome, is_ours: bool) -> int:
    if is_ours:
        is_temporary = outcome.error_status == UNAVAILABLE
        return logging.WARNING if is_temporary else logging.ERROR
    return logging.DEBUG if outcome.endpoint in PROBES else logging.INFO


def _is_ours(outcome: RequestOutcome) -> bool:
    """Whether the server failed, and did not merely refuse what was too much or not there."""
    is_refusal = outcome.error_status == UNAVAILABLE and (
        not outcome.neuron or outcome.outcome in BUSY
    )
    return outcome.error_status in SERVER_ERRORS and not is_refusal


def _fields(outcome: RequestOutcome, is_ours: bool) -> dict[str, object]:
    usage = outcome.usage
    return {
        "id": outcome.request_id,
        "endpoint": outcome.endpoint,
        "account": outcome.account,
        "key": outcome.key,
        "client": outcome.client,
        "model": outcome.model,
        "neuron": outcome.neuron,
        "status": outcome.status,
        "outcome": outcome.outcome,
        **({"cause": outcome.error_message} if is_ours else {}),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "duration_s": round(outcome.duration_s, 4),
        "time_to_first_token_s": outcome.time_to_first_token_s,
    }
