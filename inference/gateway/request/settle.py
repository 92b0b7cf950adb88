"""Records a request's end: one line in the log, the metrics, the ledger. Nothing else keeps a
record of its own of how a request ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from inference.gateway.metrics.requests import Metrics
from inference.gateway.request.call import NO_MODEL, RequestOutcome
from metering.outcomes import UNAVAILABLE, Outcome

logger = logging.getLogger("helexa.requests")

PROBES = frozenset({"/health", "/ping"})
"""Asked every few seconds by whatever watches a gateway: their lines would bury the others."""

MAX_CAUSE_CHARACTERS = 300


class RequestRecords(Protocol):
    """``metering.request_records.writer`` in front of the database."""

    def start(self) -> None: ...
    async def stop(self, timeout_s: float) -> None:
        """Writes the queue first."""
        ...

    def add(self, ended: RequestOutcome) -> None:
        """Returns at once."""
        ...

    @property
    def depth(self) -> int:
        """How many are not written yet; from any thread, as is ``num_dropped``."""
        ...

    @property
    def num_dropped(self) -> int:
        """How many will never be written."""
        ...


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
            outcome=outcome.kind,
            **settle.tokens,
            duration_s=outcome.duration_s,
            time_to_first_token_s=outcome.time_to_first_token_s,
            cold_start=outcome.was_cold,
        )

    return count


def recorded_by(records: RequestRecords) -> Listener:
    def record(outcome: RequestOutcome) -> None:
        if outcome.settle.endpoint not in PROBES:
            records.add(outcome)

    return record


def log(outcome: RequestOutcome) -> None:
    """Holds no client's text: the model is the catalogue's name, the client one of a fixed set, and
    only failures of the server have their cause with them."""
    settle, is_ours = outcome.settle, outcome.kind is Outcome.FAILED
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
