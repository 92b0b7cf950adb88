"""The circuit breaker, by an injected clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.upstreams.links import MAX_FAILURES, OPEN_S, TRIAL_S, CircuitBreaker


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def opened() -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    assert [breaker.unavailable() for _ in range(MAX_FAILURES)] == [False] * (MAX_FAILURES - 1) + [
        True
    ]
    return breaker, clock


def test_one_request_tries_and_decides() -> None:
    breaker, clock = opened()
    assert breaker.admit() == OPEN_S
    clock.now_s = OPEN_S
    assert (breaker.admit(), breaker.admit()) == (None, TRIAL_S)
    assert not breaker.unavailable()
    assert breaker.admit() == OPEN_S
    clock.now_s += OPEN_S
    assert breaker.admit() is None
    breaker.left()
    assert breaker.admit() is None
    assert breaker.answered()
    assert (breaker.admit(), breaker.admit()) == (None, None)


def test_a_probe_that_fails_keeps_it_open_and_no_trial_waits_for_it() -> None:
    breaker, clock = opened()
    clock.now_s = OPEN_S / 2
    breaker.stay_open()
    clock.now_s = OPEN_S
    assert breaker.admit() == OPEN_S / 2
    clock.now_s += OPEN_S / 2
    assert breaker.admit() is None
    breaker.stay_open()
    assert breaker.left_s == TRIAL_S, "the request that tries decides"
    breaker.answered()
    breaker.stay_open()
    assert breaker.admit() is None


@given(st.lists(st.sampled_from(["answered", "unavailable", "left"]), max_size=40))
def test_an_answer_always_closes_it(ends: list[str]) -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    for end in ends:
        clock.now_s += OPEN_S
        assert breaker.admit() is None, "after its time one request is always sent"
        getattr(breaker, end)()
    breaker.answered()
    assert breaker.admit() is None
