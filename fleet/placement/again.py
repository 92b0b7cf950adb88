"""Which requests that failed are placed again: those that no engine has accepted. Pure.

    gone before Accepted: neuron_lost, neuron_stopping
    nothing there took it: model_not_loaded, model_loading, recovering, draining, model_load_failed

An accepted one never runs twice, and neither does one of which nobody can say (``events_lost``,
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
"""Said by neurons before they hand a request to an engine, and by the gateway of neurons that
went away."""


def may_place_again(code: str, *, is_accepted: bool, num_attempts: int) -> bool:
    return not is_accepted and code in UNACCEPTED and num_attempts < MAX_ATTEMPTS
