"""The end of a request, as the metrics are given it."""

from __future__ import annotations

from typing import Any

from inference.gateway.request.outcome import RequestOutcome
from metering.ledger.entries import Outcome, Settle
from metering.money import FREE

SETTLE: dict[str, Any] = {
    "request_id": "r",
    "account": "team",
    "key": "hx_abc",
    "budgets": (),
    "model": "tiny",
    "neuron": "beast",
    "endpoint": "/v1/chat/completions",
    "client": "curl",
    "outcome": "finished",
    "prices": FREE,
    "ended_unix_s": 0.0,
    "prompt_tokens": 70,
    "cached_tokens": 32,
    "completion_tokens": 21,
    "reasoning_tokens": 5,
    "duration_ms": 3000,
    "time_to_first_token_ms": 1000,
    "is_failure": False,
}


def ended(
    *, kind: Outcome = Outcome.ANSWERED, status: int = 200, was_cold: bool = False, **changed: Any
) -> RequestOutcome:
    """``changed``: fields of ``Settle``."""
    return RequestOutcome(
        settle=Settle(**{**SETTLE, **changed}),
        is_billed=True,
        kind=kind,
        status=status,
        was_cold=was_cold,
    )
