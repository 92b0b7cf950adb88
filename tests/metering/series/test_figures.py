"""Figures add up in any order and any grouping, percentiles with them; and steps of time."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.errors import MeteringValueError
from metering.series import figures
from metering.series.figures import (
    ERROR,
    MAX_CODES,
    MAX_ERROR,
    add,
    bucket_of,
    errors_of,
    merged,
    percentile,
)
from metering.series.steps import (
    KEPT_S,
    MAX_POINTS,
    RANGES,
    TIERS,
    USUAL_POINTS,
    Kind,
    boundary_s,
    finest_step_s,
    floor_s,
    kind_of,
    range_of,
)
from tests.cases import each_case

NOW_UNIX_S = 1_780_000_123
VALUES = st.lists(st.integers(1, 10**9), min_size=1, max_size=15)


@given(VALUES, VALUES, st.integers(1, 100))
def test_a_percentile_is_off_by_little_and_histograms_add_up(
    left: list[int], right: list[int], percent: int
) -> None:
    values = left + right
    exact = sorted(values)[max(1, math.ceil(percent / 100 * len(values))) - 1]
    found = percentile(Counter(map(bucket_of, values)), percent / 100)
    assert found is not None and abs(found - exact) <= exact * MAX_ERROR * 1.001

    def counted(values: list[int]) -> figures.Figures:
        return merged({figures.in_bucket("ms", value): 1} for value in values)

    both = merged([counted(left), counted(right)])
    assert both == counted(values)
    assert figures.percentile_of(both, "ms", percent / 100) == found


def test_extremes_have_a_bucket() -> None:
    assert percentile({}, 0.5) is None
    assert bucket_of(-5) == bucket_of(0.5) == 0
    assert percentile({0: 3}, 0.5) == 0.0
    assert bucket_of(10**30) == bucket_of(2**63 - 1)
    assert percentile({bucket_of(2): 1}, 1.0) == pytest.approx(2, rel=MAX_ERROR)


def test_codes_are_bounded_and_none_is_lost() -> None:
    row: figures.Figures = {}
    for number in range(MAX_CODES + 10):
        add(row, {f"{ERROR}code_{number}": 2})
    found = errors_of(row)
    assert len(found) == MAX_CODES + 1
    assert (found["other"], sum(found.values())) == (20, 2 * (MAX_CODES + 10))
    assert next(iter(found)) == "other", "the most first"


@given(st.integers(0, 2 * KEPT_S), st.integers(0, KEPT_S))
def test_what_is_rolled_up_is_of_a_whole_coarse_step(age_s: int, shift_s: int) -> None:
    """A row that stays fine has its whole coarse step fine; what a range reads is fine enough."""
    now_unix_s = NOW_UNIX_S + shift_s
    for place, (_, kept_s) in enumerate(TIERS[:-1]):
        assert boundary_s(now_unix_s, place) % TIERS[place + 1][0] == 0
        assert boundary_s(now_unix_s, place) <= now_unix_s - kept_s
    step_s = finest_step_s(now_unix_s - age_s, now_unix_s)
    coarser = [place for place, tier in enumerate(TIERS) if tier[0] > step_s]
    if coarser:
        assert now_unix_s - age_s >= boundary_s(now_unix_s, coarser[0] - 1)


@given(
    st.sampled_from([*RANGES, "5m", "7m", "100m", "6h", "71h", "4d", "29d"]), st.integers(0, 10**6)
)
def test_a_range_has_few_points_and_ends_now(word: str, shift_s: int) -> None:
    now_unix_s = NOW_UNIX_S + shift_s
    found = range_of(word, "", now_unix_s=now_unix_s)
    points = range(found.since_unix_s, found.until_unix_s + 1, found.step_s)
    assert 2 <= len(points) <= USUAL_POINTS + 1
    assert points[0] == found.since_unix_s
    assert points[-1] == floor_s(now_unix_s, found.step_s)
    assert found.step_s % finest_step_s(found.since_unix_s, now_unix_s) == 0


@each_case(
    ("word", "step", "parameter"),
    [
        ("4m", "", "range"),
        ("31d", "", "range"),
        ("week", "", "range"),
        ("24h", "60", "step"),  # no minutes are kept so long
        ("30m", "90", "step"),
        ("30m", "3600", "step"),
        ("30m", "0", "step"),
        ("30m", "-60", "step"),
        ("30m", "²", "step"),
    ],
)
def test_what_no_series_has_is_refused_by_name(word: str, step: str, parameter: str) -> None:
    with pytest.raises(MeteringValueError) as refused:
        range_of(word, step, now_unix_s=NOW_UNIX_S)
    assert refused.value.field == parameter


def test_a_step_may_be_chosen() -> None:
    found = range_of("3h", "300", now_unix_s=NOW_UNIX_S)
    assert (found.step_s, found.step_words, found.since_unix_s % 300) == (300, "5 minutes", 0)
    assert range_of("30d", "3600", now_unix_s=NOW_UNIX_S).step_words == "1 hour"
    assert KEPT_S // TIERS[-1][0] <= MAX_POINTS, "every row can be read by itself"
    assert kind_of("model") is Kind.MODEL
    with pytest.raises(MeteringValueError, match="'models' is none of fleet, model"):
        kind_of("models")
