"""A regression is what noise does not explain."""

from __future__ import annotations

from typing import Any

import pytest

from metering.bench.comparison import (
    DECODE,
    JUDGED,
    LOAD,
    TTFT,
    Metric,
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


UNCLEAR = ([17.1, 12.0, 25.1, 16.8, 17.5], [22.6, 15.9, 24.8, 22.9, 17.3])
SPREAD = [98.0, 99.0, 100.0, 101.0, 102.0]
"""Its deviation is 1."""


def shifted(values: list[float], shift: float) -> list[float]:
    return [value + shift for value in values]


@each_case(
    ("metric", "before", "after", "verdict"),
    [
        (DECODE, BEFORE, SLOWER, Verdict.REGRESSED),
        (DECODE, SLOWER, BEFORE, Verdict.IMPROVED),
        (TTFT, BEFORE, SLOWER, Verdict.IMPROVED),
        (TTFT, SLOWER, BEFORE, Verdict.REGRESSED),
        (DECODE, BEFORE[:4], SLOWER[:4], Verdict.TOO_FEW),
        (DECODE, BEFORE, shifted(BEFORE, 2.71), Verdict.SAME),  # it matters to nobody
        (DECODE, *UNCLEAR, Verdict.UNCLEAR),  # noise may explain it
        (DECODE, *UNCLEAR[::-1], Verdict.UNCLEAR),
        (DECODE, UNCLEAR[0], UNCLEAR[0], Verdict.SAME),
        (DECODE, SPREAD, shifted(SPREAD, -6.0), Verdict.SAME),  # three times both deviations
        (DECODE, SPREAD, shifted(SPREAD, -6.1), Verdict.REGRESSED),
        (DECODE, [100.0] * 5, [97.1] * 5, Verdict.SAME),  # less than three percent
        (DECODE, [100.0] * 5, [97.0] * 5, Verdict.REGRESSED),
        (LOAD, [1.0] * 5, [0.0] * 5, Verdict.IMPROVED),
        (LOAD, [0.0] * 5, [0.8] * 5, Verdict.REGRESSED),
        (LOAD, [0.0] * 5, [0.0] * 5, Verdict.SAME),
    ],
)
def test_a_regression_is_what_noise_does_not_explain(
    metric: Metric, before: list[float], after: list[float], verdict: Verdict
) -> None:
    found = judge(metric, before, after)
    assert found is not None and found.verdict is verdict


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
    assert found.cells.keys() == {("m", "chat:128"), ("m", "load")}
    slower, same = found.cells["m", "chat:128"]
    assert (slower.verdict, same.verdict) == (Verdict.REGRESSED, Verdict.SAME)
    assert (slower.before.median, slower.after.median) == (100.0, 70.3)
    assert slower.ratio == pytest.approx(0.703)
    assert judge(DECODE, [], SLOWER) is None
    assert [found.num_with(one) for one in (Verdict.REGRESSED, Verdict.IMPROVED)] == [1, 0]
    assert found.num_undecided == 0
    assert found.only_before == [("gone", "load")]
    assert found.only_after == [("m", "prefill:9")]
    (alone,) = compare(before, before, only_metrics={"ttft_s"}).cells.values()
    assert [difference.metric for difference in alone] == [TTFT]
    assert compare(before, before, only_metrics={"total_s"}).cells == {}
    assert set(JUDGED) == set(ScenarioKind) and judged_metrics("image:1024")


@each_case(
    ("metrics", "num_undecided"),
    [
        ({"decode_tps": UNCLEAR, "ttft_s": (BEFORE, BEFORE)}, 1),
        ({"decode_tps": (BEFORE[:4], SLOWER)}, 1),
        ({"decode_tps": (BEFORE[:4], SLOWER), "ttft_s": (BEFORE, BEFORE)}, 0),
    ],
)
def test_few_samples_and_noise_leave_a_cell_undecided(metrics: Any, num_undecided: int) -> None:
    sides = [
        {("m", "chat:8"): {name: values[side] for name, values in metrics.items()}}
        for side in (0, 1)
    ]
    assert compare(*sides).num_undecided == num_undecided


def test_a_spread_is_a_median_and_the_median_deviation() -> None:
    assert spread_of([]) is None and median([]) is None and percentile([], 95) is None
    assert spread_of([3.0]) == Spread(median=3.0, mad=0.0, num_samples=1)
    assert spread_of([1.0, 2.0, 4.0, 8.0]) == Spread(median=3.0, mad=1.5, num_samples=4)
    odd = [1.0, 2.0, 4.0, 8.0, 100.0]
    assert spread_of(odd) == Spread(median=4.0, mad=3.0, num_samples=5)
    ranks = [float(number) for number in range(1, 21)]
    assert [percentile(ranks, percent) for percent in (1, 50, 95, 99)] == [1, 10, 19, 20]
