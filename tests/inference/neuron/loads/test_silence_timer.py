"""When an engine has been silent for long enough to be given up."""

from __future__ import annotations

import pytest

from inference.neuron.loads.watch import SilenceTimer
from inference.neuron.replicas.engine_process import MARGIN_S, silence_limit_s


def test_silence_grows_until_something_is_reported() -> None:
    silence = SilenceTimer()
    assert [silence.look(float(now_s)) for now_s in range(10, 15)] == [0, 1, 2, 3, 4]
    silence.end()
    assert [silence.look(float(now_s)) for now_s in range(15, 18)] == [1, 2, 3]


def test_time_in_which_nobody_listened_is_not_counted() -> None:
    """A neuron that was stopped for an hour does not blame its engines."""
    silence = SilenceTimer()
    silence.look(0.0)
    assert silence.look(3600.0) <= 2.0


def test_the_engines_own_watchdog_is_first() -> None:
    assert silence_limit_s({}) == 120.0 + MARGIN_S
    assert silence_limit_s({"HELEXA_STEP_TIMEOUT_S": "0"}) is None
    with pytest.raises(ValueError, match="HELEXA_STEP_TIMEOUT_S"):
        silence_limit_s({"HELEXA_STEP_TIMEOUT_S": "soon"})
