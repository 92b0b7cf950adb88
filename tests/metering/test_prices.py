"""Prices by tokens, and what is taken off them."""

from __future__ import annotations

import pytest

from metering.prices import Prices


@pytest.mark.parametrize(("percent", "expected"), [(0, 3), (50, 2), (99, 1), (100, 0)])
def test_a_discount_rounds_up(percent: int, expected: int) -> None:
    prices = Prices(input_micro_usd=3, cached_input_micro_usd=3, output_micro_usd=3).less(percent)
    assert prices == Prices(
        input_micro_usd=expected, cached_input_micro_usd=expected, output_micro_usd=expected
    )
