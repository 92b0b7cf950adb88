"""Dollars as people write them, prices by tokens, and the four words for how a request ended."""

from __future__ import annotations

import pytest

from metering.ledger.entries import Outcome, outcome_of
from metering.money import Metered, Prices, UnitPrices, cost_text, micro_usd_of, usd_text
from tests.cases import each_case


@each_case(
    ("text", "micro_usd", "shown"),
    [
        ("0", 0, "$0.00"),
        ("0.1", 100_000, "$0.10"),
        ("12.50", 12_500_000, "$12.50"),
        ("$3", 3_000_000, "$3.00"),
        ("1e-6", 1, "$0.000001"),
        ("0.0123", 12_300, "$0.0123"),
        ("1234.5", 1_234_500_000, "$1,234.50"),
        ("9000000000", 9_000_000_000_000_000, "$9,000,000,000.00"),
    ],
)
def test_dollars_are_read_and_shown(text: str, micro_usd: int, shown: str) -> None:
    assert micro_usd_of(text) == micro_usd
    assert usd_text(micro_usd) == shown
    assert micro_usd_of(usd_text(micro_usd).replace(",", "")) == micro_usd
    assert usd_text(-20_000) == "-$0.02"


def test_amounts_that_are_none_and_what_was_spent_to_the_cent() -> None:
    for text in ("", "x", "-1", "0.0000001", "nan", "inf", "1e400", "9000000001", "1,5"):
        with pytest.raises(ValueError, match=r"US dollars|decimals"):
            micro_usd_of(text)
    for micro_usd, text in (
        (0, "$0.00"),
        (1_230, "$0.00123"),
        (9_999, "$0.009999"),
        (10_000, "$0.01"),
        (333_446, "$0.33"),
        (335_000, "$0.34"),
        (999_999_999, "$1,000.00"),
    ):
        assert cost_text(micro_usd) == text


def test_units_cost_what_they_cost_and_each_request_beside() -> None:
    prices = UnitPrices(request_micro_usd=1_500_000, unit_micro_usd=100)
    metered = prices.metered("second", 2_000_001)
    assert metered == Metered(unit="second", num_units=2_000_001, micro_usd=202)
    assert prices.metered("second", 0).micro_usd == 2
    assert UnitPrices().metered("image", 9).micro_usd == 0
    assert prices.less(50) == UnitPrices(request_micro_usd=750_000, unit_micro_usd=50)
    assert prices.less(0) == prices
    three = Prices(input_micro_usd=3, cached_input_micro_usd=3, output_micro_usd=5)
    assert Prices.named(input=3, cached_input=None, output=5) == three
    named = Prices.named(input=3, cached_input=0, output=5)
    assert named == Prices(input_micro_usd=3, cached_input_micro_usd=0, output_micro_usd=5)
    assert Prices.named(input=None, cached_input=1, output=5) is None
    assert Prices.named(input=3, cached_input=1, output=None) is None
    for percent, expected in ((0, 3), (50, 2), (99, 1), (100, 0)):  # a discount rounds up
        discounted = Prices.named(input=3, cached_input=3, output=3)
        assert discounted is not None
        assert discounted.less(percent) == Prices.named(
            input=expected, cached_input=expected, output=expected
        )


@each_case(
    ("code", "error_status", "is_placed", "outcome"),
    [
        ("finished", 0, True, Outcome.ANSWERED),
        ("cancelled", 0, False, Outcome.CANCELLED),
        ("cancelled", 0, True, Outcome.CANCELLED),
        ("cancelled", 503, True, Outcome.FAILED),  # by its neuron, while its client waited
        ("invalid_api_key", 401, False, Outcome.REFUSED),
        ("insufficient_quota", 429, False, Outcome.REFUSED),
        ("context_length_exceeded", 400, True, Outcome.REFUSED),
        ("queue_timeout", 503, False, Outcome.REFUSED),
        ("queue_full", 503, True, Outcome.REFUSED),  # by a neuron
        ("model_loading", 503, False, Outcome.REFUSED),
        ("shutting_down", 503, False, Outcome.REFUSED),
        ("database_unavailable", 503, False, Outcome.FAILED),
        ("redis_unavailable", 503, False, Outcome.FAILED),
        ("storage_unavailable", 503, True, Outcome.FAILED),
        ("neuron_lost", 503, True, Outcome.FAILED),
        ("internal_error", 500, False, Outcome.FAILED),
        ("engine_crashed", 502, True, Outcome.FAILED),
    ],
)
def test_outcomes(code: str, error_status: int, is_placed: bool, outcome: Outcome) -> None:
    assert outcome_of(code=code, error_status=error_status, is_placed=is_placed) is outcome
