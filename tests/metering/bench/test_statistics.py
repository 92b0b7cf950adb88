"""The numbers of the test are those of textbooks and of other implementations."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.bench.results import statistics as ours
from tests.cases import each_case

MALES = [19, 22, 16, 29, 24]
FEMALES = [20, 11, 17, 12]
"""Ages at which diabetes was found: the example of SciPy's manual."""


@each_case(("percent", "value"), [(50, 20), (5, 15), (30, 20), (40, 20), (100, 50), (95, 50)])
def test_percentiles_are_by_nearest_rank(percent: int, value: int) -> None:
    assert ours.percentile([50, 20, 15, 40, 20], percent) == value


def test_nothing_has_no_percentile() -> None:
    assert ours.percentile([], 50) is None
    assert ours.median([]) is None


def test_the_exact_test_has_the_known_value() -> None:
    result = ours.mann_whitney(MALES, FEMALES)
    assert (result.u, result.is_exact) == (17, True)
    assert result.p_value == pytest.approx(1 / 9)


def test_the_normal_test_has_the_known_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "MAX_EXACT_SAMPLES", 0)
    result = ours.mann_whitney(MALES, FEMALES)
    assert not result.is_exact
    assert result.p_value == pytest.approx(0.11134688653314041)


def test_the_normal_test_counts_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ties are counted by hand: two ones and three twos are tied."""
    monkeypatch.setattr(ours, "MAX_EXACT_SAMPLES", 0)
    result = ours.mann_whitney([1, 2, 2], [1, 2, 5])
    assert result.u == 3.5
    z = (4.5 - 3.5 - 0.5) / (9 / 12 * (7 - (6 + 24) / 30)) ** 0.5
    assert result.p_value == pytest.approx(2 * (1 - statistics.NormalDist().cdf(z)))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_the_exact_test_is_what_dealing_all_ranks_gives(
    first: list[int], second: list[int]
) -> None:
    def u_of(ones: list[int], others: list[int]) -> float:
        return sum((one > other) + (one == other) / 2 for one in ones for other in others)

    pooled = [*first, *second]
    middle = len(first) * len(second) / 2
    found = []
    for chosen in itertools.combinations(range(len(pooled)), len(first)):
        ones = [pooled[position] for position in chosen]
        others = [value for position, value in enumerate(pooled) if position not in chosen]
        found.append(abs(u_of(ones, others) - middle))
    u = u_of(first, second)
    as_far = sum(distance >= abs(u - middle) for distance in found) / len(found)
    result = ours.mann_whitney(first, second)
    assert result.u == u
    assert result.p_value == pytest.approx(as_far)


def test_equal_samples_do_not_differ() -> None:
    assert ours.mann_whitney([3.0] * 5, [3.0] * 5).p_value == 1.0
    assert ours.mann_whitney([3.0] * 30, [3.0] * 30).p_value == 1.0


def test_the_least_p_value_is_the_one_of_samples_that_do_not_overlap() -> None:
    for num in (1, 3, 4, 5):
        result = ours.mann_whitney(list(range(num)), list(range(10, 10 + num)))
        assert result.p_value == pytest.approx(ours.least_p_value(num, num))


def test_exact_and_normal_agree_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(3)
    first = [numbers.gauss(10, 1) for _ in range(20)]
    second = [numbers.gauss(10.5, 1) for _ in range(20)]
    exact = ours.mann_whitney(first, second)
    monkeypatch.setattr(ours, "MAX_EXACT_SAMPLES", 0)
    assert ours.mann_whitney(first, second).p_value == pytest.approx(exact.p_value, abs=0.01)


def test_a_ratio_is_found_with_its_interval() -> None:
    before = [100, 101, 99, 102, 98]
    ratio = ours.ratio_of(before, [0.7 * value for value in before])
    assert ratio is not None
    assert ratio.estimate == pytest.approx(0.7)
    assert 0.66 < ratio.low < 0.7 < ratio.high < 0.74


def test_the_interval_leaves_out_what_tables_list() -> None:
    """Critical values of U at 5 %, two-sided: 2 for five and five, 23 for ten and ten."""
    assert ours.interval_cut(5, 5, 0.95) == 3
    assert ours.interval_cut(10, 10, 0.95) == 24
    assert ours.interval_cut(3, 3, 0.95) == 0


def test_few_samples_have_the_widest_interval() -> None:
    ratio = ours.ratio_of([1, 2], [2, 6])
    assert ratio is not None
    assert (ratio.low, ratio.high) == (1, 6)
    assert ours.ratio_of([1, 0], [2, 6]) is None
    assert ours.ratio_of([], [2, 6]) is None


def test_the_interval_holds_the_truth_as_often_as_it_claims() -> None:
    numbers = random.Random(11)
    for size in (5, 25):
        held = 0
        for _ in range(200):
            before = [numbers.lognormvariate(0, 0.1) for _ in range(size)]
            after = [1.3 * numbers.lognormvariate(0, 0.1) for _ in range(size)]
            ratio = ours.ratio_of(before, after)
            held += ratio is not None and ratio.low <= 1.3 <= ratio.high
        assert held >= 180
