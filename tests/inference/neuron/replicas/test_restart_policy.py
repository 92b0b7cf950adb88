"""Back-off and giving up."""

from __future__ import annotations

from inference.backoff import Backoff
from inference.neuron.replicas.retries import RestartPolicy


def test_the_first_restart_is_at_once_then_delays_double_up_to_a_limit() -> None:
    policy = RestartPolicy(backoff=Backoff(first_s=0.5, max_s=1.5), max_quick_failures=5)
    delays = [policy.delay_s(failures) for failures in range(1, 7)]
    assert delays == [0.0, 0.5, 1.0, 1.5, 1.5, None]
