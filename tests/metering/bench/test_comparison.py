"""A regression is what noise does not explain."""

from __future__ import annotations

import random

import pytest

from metering.bench.comparison import (
    DECODE,
    JUDGED,
    LOAD,
    TTFT,
    Spread,
    Verdict,
    compare,
    judge,
    judged_metrics,
    median,
    percentile,
    spread_of,
)
from metering.bench.scenarios import ScenarioKind
from tests.cases import each_case

BEFORE = [100.0, 101.5, 99.2, 100.7, 98.9]
SLOWER = [70.3, 69.1, 71.2, 70.8, 69.9]


def verdict(*sides: list[float], metric: object = DECODE) -> Verdict:
    found = judge(metric, *sides)  # type: ignore[arg-type]
    assert found is not None
    return found.verdict


def test_thirty_percent_slower_is_a_regression() -> None:
    found = judge(DECODE, BEFORE, SLOWER)
    assert found is not None and found.ratio is not None
    assert found.verdict is Verdict.REGRESSED
    assert (found.before.median, found.after.median) == (100.0, 70.3)
    assert found.ratio == pytest.approx(0.703)


def test_which_way_is_worse_depends_on_the_metric() -> None:
    assert verdict(SLOWER, BEFORE) is Verdict.IMPROVED
    assert verdict(BEFORE, SLOWER, metric=TTFT) is Verdict.IMPROVED
    assert verdict(SLOWER, BEFORE, metric=TTFT) is Verdict.REGRESSED


def test_few_samples_prove_nothing() -> None:
    assert verdict(BEFORE[:4], SLOWER[:4]) is Verdict.TOO_FEW
    assert judge(DECODE, [], SLOWER) is None


def test_a_difference_that_matters_to_nobody_is_none() -> None:
    assert verdict(BEFORE, [value * 1.0001 + 2.7 for value in BEFORE]) is Verdict.SAME


def test_a_large_difference_that_noise_may_explain_is_unclear() -> None:
    before, after = [17.1, 12.0, 25.1, 16.8, 17.5], [22.6, 15.9, 24.8, 22.9, 17.3]
    assert verdict(before, after) is Verdict.UNCLEAR
    assert verdict(after, before) is Verdict.UNCLEAR
    assert verdict(before, before) is Verdict.SAME


def test_noise_is_hardly_ever_a_regression() -> None:
    numbers = random.Random(5)

    def five() -> list[float]:
        return [numbers.gauss(100, 10) for _ in range(5)]

    found = [verdict(five(), five()) for _ in range(1000)]
    assert found.count(Verdict.REGRESSED) + found.count(Verdict.IMPROVED) <= 20


def test_zeros_are_compared_as_well() -> None:
    assert verdict([1.0] * 5, [0.0] * 5, metric=LOAD) is Verdict.IMPROVED
    assert verdict([0.0] * 5, [0.8] * 5, metric=LOAD) is Verdict.REGRESSED
    assert verdict([0.0] * 5, [0.0] * 5, metric=LOAD) is Verdict.SAME


def test_cells_are_compared_with_their_like() -> None:
    before = {
        ("m", "chat:128"): {"decode_tps": BEFORE, "ttft_s": [0.1] * 5},
        ("m", "load"): {"swap_load_ms": [1.0] * 5},
        ("gone", "load"): {"swap_load_ms": [1.0] * 5},
    }
    after = {
        ("m", "chat:128"): {"decode_tps": SLOWER, "ttft_s": [0.1] * 5},
        ("m", "load"): {"swap_load_ms": [1.0] * 5},
        ("m", "prefill:9"): {"prefill_tps": BEFORE},
    }
    found = compare(before, after)
    assert [(cell.scenario, cell.has(Verdict.REGRESSED)) for cell in found.cells] == [
        ("chat:128", True),
        ("load", False),
    ]
    assert (found.num_regressed, found.num_improved, found.num_undecided) == (1, 0, 0)
    assert found.only_before == (("gone", "load"),)
    assert found.only_after == (("m", "prefill:9"),)


def test_one_metric_can_be_looked_at_alone() -> None:
    cells = {("m", "chat:128"): {"decode_tps": BEFORE, "ttft_s": [0.1] * 5}}
    (cell,) = compare(cells, cells, only_metrics=frozenset({"ttft_s"})).cells
    assert [difference.metric for difference in cell.differences] == [TTFT]
    assert compare(cells, cells, only_metrics=frozenset({"total_s"})).cells == ()


def test_few_samples_and_noise_leave_a_cell_undecided() -> None:
    def undecided(**metrics: tuple[list[float], list[float]]) -> bool:
        before, after = (
            {("m", "chat:8"): {name: sides[number] for name, sides in metrics.items()}}
            for number in (0, 1)
        )
        return compare(before, after).num_undecided == 1

    unclear = [17.1, 12.0, 25.1, 16.8, 17.5], [22.6, 15.9, 24.8, 22.9, 17.3]
    assert undecided(decode_tps=unclear, ttft_s=(BEFORE, BEFORE))
    assert undecided(decode_tps=(BEFORE[:4], SLOWER))
    assert not undecided(decode_tps=(BEFORE[:4], SLOWER), ttft_s=(BEFORE, BEFORE))


@each_case(
    ("values", "spread"),
    [
        ([], None),
        ([3.0], Spread(median=3.0, mad=0.0, num_samples=1)),
        ([1.0, 2.0, 4.0, 8.0, 100.0], Spread(median=4.0, mad=3.0, num_samples=5)),
        ([1.0, 2.0, 4.0, 8.0], Spread(median=3.0, mad=1.5, num_samples=4)),
    ],
)
def test_a_spread_is_a_median_and_the_median_deviation(
    values: list[float], spread: Spread | None
) -> None:
    assert spread_of(values) == spread


@each_case(
    ("shift", "verdict_of"),
    [
        (6.0, Verdict.SAME),  # three times both deviations, which are 1
        (6.1, Verdict.REGRESSED),
    ],
)
def test_three_times_both_deviations_are_noise(shift: float, verdict_of: Verdict) -> None:
    before = [98.0, 99.0, 100.0, 101.0, 102.0]
    assert verdict(before, [value - shift for value in before]) is verdict_of


@each_case(("shift", "verdict_of"), [(2.9, Verdict.SAME), (3.0, Verdict.REGRESSED)])
def test_less_than_three_percent_is_no_change(shift: float, verdict_of: Verdict) -> None:
    assert verdict([100.0] * 5, [100.0 - shift] * 5) is verdict_of


def test_percentiles_are_the_nearest_rank() -> None:
    values = [float(number) for number in range(1, 21)]
    assert [percentile(values, percent) for percent in (1, 50, 95, 99)] == [1, 10, 19, 20]
    assert percentile([], 95) is None
    assert median([]) is None


def test_every_scenario_has_something_to_judge() -> None:
    assert set(JUDGED) == set(ScenarioKind)
    assert judged_metrics("image:1024")
