"""Dollars as people write them, integers inside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.money import cost_text, micro_usd_of, usd_text
from tests.cases import each_case


@each_case(
    ("text", "micro_usd"),
    [
        ("0.1", 100_000),
        ("12.50", 12_500_000),
        ("$3", 3_000_000),
        ("0.000001", 1),
        ("1e-6", 1),
        ("0.30", 300_000),
        ("9000000000", 9_000_000_000_000_000),
    ],
)
def test_read(text: str, micro_usd: int) -> None:
    assert micro_usd_of(text) == micro_usd


@each_case("text", ["", "x", "-1", "0.0000001", "nan", "inf", "1e400", "9000000001", "1,5"])
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"US dollars|decimals"):
        micro_usd_of(text)


@each_case(
    ("micro_usd", "text"),
    [
        (0, "$0.00"),
        (12_300, "$0.0123"),
        (1, "$0.000001"),
        (1_500_000, "$1.50"),
        (1_234_500_000, "$1,234.50"),
        (-20_000, "-$0.02"),
    ],
)
def test_shown(micro_usd: int, text: str) -> None:
    assert usd_text(micro_usd) == text


@given(st.integers(0, 10**15))
def test_what_is_shown_is_read_again(micro_usd: int) -> None:
    assert micro_usd_of(usd_text(micro_usd).replace(",", "")) == micro_usd


@each_case(
    ("micro_usd", "text"),
    [
        (0, "$0.00"),
        (1_230, "$0.00123"),
        (9_999, "$0.009999"),
        (10_000, "$0.01"),
        (333_446, "$0.33"),
        (335_000, "$0.34"),
        (999_999_999, "$1,000.00"),
    ],
)
def test_what_was_spent_is_reported_to_the_cent(micro_usd: int, text: str) -> None:
    assert cost_text(micro_usd) == text
