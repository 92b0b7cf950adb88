"""The live average of how fast prompts go."""

from __future__ import annotations

import pytest

from inference.engine.scheduling.pace import AVERAGED_TOKENS, PrefillAverage
from inference.protocol.load import PrefillSpeed

MEASURED = PrefillSpeed(token_s=0.001, growth_s=1e-6)


def run(average: PrefillAverage, slowdown: float, num_tokens: int, *, start: int = 0) -> None:
    for begin in range(start, start + num_tokens, 512):
        step_s = MEASURED.span_s(begin, begin + 512) * slowdown
        average.record([(begin, begin + 512)], step_s)


def test_it_starts_from_what_was_measured() -> None:
    assert PrefillAverage(MEASURED).speed == MEASURED


def test_it_goes_where_requests_go_and_forgets_slowly() -> None:
    average = PrefillAverage(MEASURED)
    run(average, 2.0, 4096)
    a_little = average.speed.prompt_s(1000) / MEASURED.prompt_s(1000)
    assert 1.05 < a_little < 1.2
    run(average, 2.0, 8 * AVERAGED_TOKENS)
    assert average.speed.prompt_s(1000) == pytest.approx(2 * MEASURED.prompt_s(1000), rel=0.01)


def test_deep_chunks_are_slower_and_do_not_look_so() -> None:
    average = PrefillAverage(MEASURED)
    run(average, 1.0, 8192, start=100_000)
    assert average.speed.token_s == pytest.approx(MEASURED.token_s)


def test_small_remainders_prove_nothing() -> None:
    average = PrefillAverage(MEASURED)
    average.record([(0, 5)], 100.0)
    average.record([], 100.0)
    assert average.speed == MEASURED
