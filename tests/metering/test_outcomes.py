"""The four words for how a request ended."""

from __future__ import annotations

from metering.ledger.entries import Outcome, outcome_of
from tests.cases import each_case


@each_case(
    ("code", "error_status", "is_placed", "outcome"),
    [
        ("finished", 0, True, Outcome.ANSWERED),
        ("cancelled", 0, False, Outcome.CANCELLED),
        ("cancelled", 0, True, Outcome.CANCELLED),
        ("cancelled", 503, True, Outcome.FAILED),  # by its neuron, while its client waited
        ("invalid_api_key", 401, False, Outcome.REFUSED),
        ("insufficient_quota", 429, False, Outcome.REFUSED),
        ("context_length_exceeded", 400, True, Outcome.REFUSED),
        ("queue_timeout", 503, False, Outcome.REFUSED),
        ("queue_full", 503, True, Outcome.REFUSED),  # by a neuron
        ("model_loading", 503, False, Outcome.REFUSED),
        ("shutting_down", 503, False, Outcome.REFUSED),
        ("database_unavailable", 503, False, Outcome.FAILED),
        ("redis_unavailable", 503, False, Outcome.FAILED),
        ("storage_unavailable", 503, True, Outcome.FAILED),
        ("neuron_lost", 503, True, Outcome.FAILED),
        ("internal_error", 500, False, Outcome.FAILED),
        ("engine_crashed", 502, True, Outcome.FAILED),
    ],
)
def test_outcomes(code: str, error_status: int, is_placed: bool, outcome: Outcome) -> None:
    assert outcome_of(code=code, error_status=error_status, is_placed=is_placed) is outcome
