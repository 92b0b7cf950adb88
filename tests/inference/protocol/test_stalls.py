"""When it may be judged by a key that is missing."""

from __future__ import annotations

import pytest

from inference.protocol.stalls import MAX_GAP_S, SETTLING_S, Continuity
from inference.settings.storage import REDIS_STALL_S


def test_settled_from_the_beginning() -> None:
    continuity = Continuity()
    assert continuity.is_settled(0)
    continuity.answered(100)
    assert continuity.is_settled(100)


def test_after_a_pause_it_takes_a_while() -> None:
    continuity = Continuity()
    continuity.answered(0)
    continuity.answered(MAX_GAP_S)
    assert continuity.is_settled(MAX_GAP_S)
    resumed_s = 3 * MAX_GAP_S
    continuity.answered(resumed_s)
    assert not continuity.is_settled(resumed_s)
    assert not continuity.is_settled(resumed_s + SETTLING_S - 0.1)
    assert continuity.is_settled(resumed_s + SETTLING_S)


def test_an_error_is_a_pause_however_short() -> None:
    continuity = Continuity()
    continuity.answered(0)
    continuity.interrupted()
    continuity.answered(0.1)
    assert not continuity.is_settled(0.2)
    continuity.answered(1.0)
    assert continuity.is_settled(0.1 + SETTLING_S), "counted from the first answer"


def test_the_limit_is_whole_seconds() -> None:
    assert REDIS_STALL_S.read({}) == 30
    assert REDIS_STALL_S.read({"HELEXA_REDIS_STALL_S": " 5 "}) == 5
    for word in ("0", "-3", "1.5", "soon", "²"):
        with pytest.raises(ValueError, match="HELEXA_REDIS_STALL_S"):
            REDIS_STALL_S.read({"HELEXA_REDIS_STALL_S": word})
