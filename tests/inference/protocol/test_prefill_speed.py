"""The formula of a prompt's time, and its inverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.load import PrefillSpeed

speeds = st.builds(
    PrefillSpeed,
    token_s=st.floats(1e-6, 1.0),
    growth_s=st.floats(0, 1e-3),
    window_tokens=st.none() | st.integers(1, 5000),
)


def test_a_token_costs_its_products_and_its_reading() -> None:
    speed = PrefillSpeed(token_s=0.01, growth_s=0.0001)
    assert speed.prompt_s(100) == pytest.approx(100 * 0.01 + 0.0001 * 100**2 / 2)
    assert speed.tokens_per_s(100) == pytest.approx(100 / 1.5)


def test_beyond_the_window_depth_costs_no_more() -> None:
    speed = PrefillSpeed(token_s=0.01, growth_s=0.0001, window_tokens=50)
    far = speed.span_s(1000, 1001)
    assert far == pytest.approx(speed.span_s(60, 61)) == pytest.approx(0.01 + 50 * 0.0001)


@given(speed=speeds, start=st.integers(0, 9000), size=st.integers(1, 999))
def test_parts_of_a_prompt_add_up(speed: PrefillSpeed, start: int, size: int) -> None:
    whole = speed.prompt_s(start + size)
    assert speed.prompt_s(start) + speed.span_s(start, start + size) == pytest.approx(whole)
    assert speed.span_s(start, start + size) > 0


@given(speed=speeds, seconds=st.floats(0, 1000), at_most=st.integers(1, 100_000))
def test_the_longest_prompt_is_the_last_that_keeps_the_time(
    speed: PrefillSpeed, seconds: float, at_most: int
) -> None:
    longest = speed.longest_prompt(seconds, at_most)
    assert 0 <= longest <= at_most
    assert speed.prompt_s(longest) <= seconds
    assert longest == at_most or speed.prompt_s(longest + 1) > seconds


def test_slower_by_a_factor() -> None:
    speed = PrefillSpeed(token_s=0.01, growth_s=0.0001, window_tokens=50)
    assert speed.slowed(3).prompt_s(777) == pytest.approx(3 * speed.prompt_s(777))
