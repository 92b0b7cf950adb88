"""A regression is what noise does not explain."""

from __future__ import annotations

import random

import pytest

from metering.bench.results.comparison import Verdict, compare, judge
from metering.bench.results.metrics import DECODE, JUDGED, LOAD, TTFT, judged_metrics
from metering.bench.sweeps.scenarios import ScenarioKind

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
    assert found.p_value == pytest.approx(2 / 252)
    assert found.ratio.high < 0.75 and found.ratio.low > 0.65


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
    assert found.count(Verdict.SAME) >= 980


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
    assert [(cell.scenario, cell.verdict) for cell in found.cells] == [
        ("chat:128", Verdict.REGRESSED),
        ("load", Verdict.SAME),
    ]
    assert [cell.scenario for cell in found.having(Verdict.REGRESSED)] == ["chat:128"]
    assert found.only_before == (("gone", "load"),)
    assert found.only_after == (("m", "prefill:9"),)


def test_one_metric_can_be_looked_at_alone() -> None:
    cells = {("m", "chat:128"): {"decode_tps": BEFORE, "ttft_s": [0.1] * 5}}
    (cell,) = compare(cells, cells, only_metrics=frozenset({"ttft_s"})).cells
    assert [difference.metric for difference in cell.differences] == [TTFT]
    assert compare(cells, cells, only_metrics=frozenset({"total_s"})).cells == ()


def test_every_scenario_has_something_to_judge() -> None:
    assert set(JUDGED) == set(ScenarioKind)
    assert judged_metrics("image:1024")
