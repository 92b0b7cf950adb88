"""Decides which failed requests are retried on another replica: those that no engine has accepted.
Pure.

    gone before Accepted: neuron_lost, neuron_stopping
    not accepted there:    model_not_loaded, model_loading, recovering, draining, model_load_failed

An accepted request never runs twice, and neither does one whose state is unknown (``events_lost``,
``request_lost``).
"""

from __future__ import annotations

MAX_ATTEMPTS = 4

UNACCEPTED = frozenset(
    {
        "neuron_lost",
        "neuron_stopping",
        "model_not_loaded",
        "model_loading",
        "recovering",
        "draining",
        "model_load_failed",
    }
)
"""Codes that neurons send before they submit a request to an engine, and that the gateway sets for
neurons that went away."""


def may_place_again(code: str, *, is_accepted: bool, num_attempts: int) -> bool:
    return not is_accepted and code in UNACCEPTED and num_attempts < MAX_ATTEMPTS
