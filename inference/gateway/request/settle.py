"""Records a request's end: one line in the log, the metrics, the ledger. Nothing else keeps a
record of its own of how a request ended."""

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

    def record(self, outcome: RequestOutcome) -> None:
        for listener in (log,) if outcome.is_self_test else self._listeners:
            try:
                listener(outcome)
            except Exception:
                logger.exception("the end of request %s is not recorded", outcome.settle.request_id)


def counted_by(metrics: Metrics) -> Listener:
    def count(outcome: RequestOutcome) -> None:
        settle = outcome.settle
        metrics.observe(
            model=None if settle.model == NO_MODEL else settle.model,
            node=settle.neuron,
            account=settle.account or None,
            key=settle.key,
            status_code=outcome.status,
            code=settle.outcome,
            **settle.tokens,
            duration_s=outcome.duration_s,
            time_to_first_token_s=outcome.time_to_first_token_s,
            cold_start=outcome.was_cold,
        )

    return count


def log(outcome: RequestOutcome) -> None:
    """Holds no client's text: the model is the catalogue's name, the client one of a fixed set, and
    only failures of the server have their cause with them."""
    settle, is_ours = outcome.settle, _is_ours(outcome)
    logger.log(
        _level(outcome, is_ours),
        "%s %s %s/%s model=%s neuron=%s client=%s status=%d %s prompt=%d cached=%d completion=%d "
        "ms=%d%s",
        settle.request_id,
        settle.endpoint,
        settle.account or "-",
        settle.key or "-",
        settle.model,
        settle.neuron or "-",
        settle.client or "-",
        outcome.status,
        settle.outcome,
        settle.prompt_tokens,
        settle.cached_tokens,
        settle.completion_tokens,
        settle.duration_ms,
        f" cause={outcome.error_message:.{MAX_CAUSE_CHARACTERS}}" if is_ours else "",
        extra={"request": _fields(outcome, is_ours)},
    )


def _level(outcome: RequestOutcome, is_ours: bool) -> int:
    if is_ours:
        is_temporary = outcome.error_status == UNAVAILABLE
        return logging.WARNING if is_temporary else logging.ERROR
    return logging.DEBUG if outcome.settle.endpoint in PROBES else logging.INFO


def _is_ours(outcome: RequestOutcome) -> bool:
    """Whether the server failed, and did not merely refuse an oversized or unknown request."""
    is_refusal = outcome.error_status == UNAVAILABLE and (
        not outcome.settle.neuron or outcome.settle.outcome in BUSY
    )
    return outcome.error_status in SERVER_ERRORS and not is_refusal


def _fields(outcome: RequestOutcome, is_ours: bool) -> dict[str, object]:
    settle = outcome.settle
    return {
        "id": settle.request_id,
        **settle.who_and_what,
        "status": outcome.status,
        "outcome": settle.outcome,
        **({"cause": outcome.error_message} if is_ours else {}),
        **settle.tokens,
        "duration_s": outcome.duration_s,
        "time_to_first_token_s": outcome.time_to_first_token_s,
    }
