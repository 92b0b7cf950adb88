"""Prices by tokens, and discounts."""

from __future__ import annotations

from metering.prices import Metered, Prices, UnitPrices
from tests.cases import each_case


@each_case(("percent", "expected"), [(0, 3), (50, 2), (99, 1), (100, 0)])
def test_a_discount_rounds_up(percent: int, expected: int) -> None:
    prices = Prices(input_micro_usd=3, cached_input_micro_usd=3, output_micro_usd=3).less(percent)
    assert prices == Prices(
        input_micro_usd=expected, cached_input_micro_usd=expected, output_micro_usd=expected
    )


def test_units_cost_what_they_cost_and_each_request_beside() -> None:
    prices = UnitPrices(request_micro_usd=1_500_000, unit_micro_usd=100)
    metered = prices.metered("second", 2_000_001)
    assert metered == Metered(unit="second", num_units=2_000_001, micro_usd=202)
    assert prices.metered("second", 0).micro_usd == 2
    assert UnitPrices().metered("image", 9).micro_usd == 0
    assert prices.less(50) == UnitPrices(request_micro_usd=750_000, unit_micro_usd=50)
    assert prices.less(0) == prices


def test_named_prices_need_both_and_cached_tokens_cost_as_others() -> None:
    priced = Prices.named(input=3, cached_input=None, output=5)
    assert priced == Prices(input_micro_usd=3, cached_input_micro_usd=3, output_micro_usd=5)
    named = Prices.named(input=3, cached_input=0, output=5)
    assert named == Prices(input_micro_usd=3, cached_input_micro_usd=0, output_micro_usd=5)
    assert Prices.named(input=None, cached_input=1, output=5) is None
    assert Prices.named(input=3, cached_input=1, output=None) is None
