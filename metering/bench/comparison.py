"""Compares two builds or two targets, cell by cell: better, worse, or the same but for noise. Pure.

Each side is a median and its median absolute deviation (MAD). A metric has changed where the
medians are further apart than ``NOISE_MADS`` times the sum of both MADs, and by at least
``MIN_CHANGE``: otherwise samples that hardly vary would make tiny changes real. Where medians are
``UNCLEAR_CHANGE`` apart or more, but within that noise, the samples are too noisy for a verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_SAMPLES = 5
"""On each side. The MAD of fewer is too often small by chance."""
NOISE_MADS = 3.0
"""Of 1,000 pairs of five samples that differ by chance alone, 15 are called changed."""
MIN_CHANGE = 0.03
UNCLEAR_CHANGE = 0.2

CellKey = tuple[str, str]
"""A model and a scenario's id."""
CellSamples = Mapping[CellKey, Mapping[str, Sequence[float]]]
"""Values by metric."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """The column of a run."""
    label: str
    unit: str
    more_is_better: bool


TTFT = Metric("ttft_s", "TTFT", "s", more_is_better=False)
TTFT_P95 = Metric("ttft_p95_s", "TTFT p95", "s", more_is_better=False)
DECODE = Metric("decode_tps", "decode", "tok/s", more_is_better=True)
PREFILL = Metric("prefill_tps", "prefill", "tok/s", more_is_better=True)
LOAD = Metric("swap_load_ms", "load", "ms", more_is_better=False)
UNLOAD = Metric("swap_unload_ms", "unload", "ms", more_is_better=False)

METRICS = {metric.name: metric for metric in (TTFT, TTFT_P95, DECODE, PREFILL, LOAD, UNLOAD)}
JUDGED = {
    "chat": (DECODE, TTFT, PREFILL),
    "prefill": (PREFILL, TTFT),
    "concurrency": (DECODE, TTFT_P95),
    "load": (LOAD, UNLOAD),
}
"""By kind of scenario. The total time is left out: it depends on the answer's length."""


def judged_metrics(scenario_id: str) -> tuple[Metric, ...]:
    """Imported results, and those of earlier releases, may have other scenarios: their speeds and
    times are judged."""
    return JUDGED.get(scenario_id.partition(":")[0], (DECODE, TTFT, PREFILL))


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile: the smallest value that ``percent`` of all do not exceed."""
    if not values:
        return None
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def number_text(value: float) -> str:
    """Three significant digits, as many as medians of a few samples justify."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Verdict(StrEnum):
    REGRESSED = "regressed"
    IMPROVED = "improved"
    UNCLEAR = "unclear"
    SAME = "same"
    TOO_FEW = "too few samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    median: float
    mad: float
    num_samples: int

    def __str__(self) -> str:
        return f"{number_text(self.median)} ± {number_text(self.mad)}"


def spread_of(values: Sequence[float]) -> Spread | None:
    """``None`` without samples."""
    if not values:
        return None
    middle = statistics.median(values)
    mad = statistics.median(abs(value - middle) for value in values)
    return Spread(median=middle, mad=mad, num_samples=len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    metric: Metric
    before: Spread
    after: Spread
    verdict: Verdict

    @property
    def ratio(self) -> float | None:
        """After to before; ``None`` where that is 0."""
        return self.after.median / self.before.median if self.before.median else None


def judge(
    metric: Metric,
    before: Sequence[float],
    after: Sequence[float],
    *,
    min_change: float = MIN_CHANGE,
) -> Difference | None:
    """``None`` where one side has no samples."""
    old, new = spread_of(before), spread_of(after)
    if old is None or new is None:
        return None
    verdict = _verdict(metric, old, new, min_change)
    return Difference(metric=metric, before=old, after=new, verdict=verdict)


def _verdict(metric: Metric, old: Spread, new: Spread, min_change: float) -> Verdict:
    if min(old.num_samples, new.num_samples) < MIN_SAMPLES:
        return Verdict.TOO_FEW
    distance = abs(new.median - old.median)
    change = distance / abs(old.median) if old.median else math.inf
    if distance <= NOISE_MADS * (old.mad + new.mad):
        return Verdict.UNCLEAR if distance and change >= UNCLEAR_CHANGE else Verdict.SAME
    if change < min_change:
        return Verdict.SAME
    has_more = new.median > old.median
    return Verdict.IMPROVED if has_more == metric.more_is_better else Verdict.REGRESSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    cells: Mapping[CellKey, Sequence[Difference]]
    only_before: Sequence[CellKey]
    only_after: Sequence[CellKey]

    def num_with(self, verdict: Verdict) -> int:
        return sum(any(one.verdict is verdict for one in cell) for cell in self.cells.values())

    @property
    def num_undecided(self) -> int:
        """Cells where noise or too few samples hide a regression."""
        verdicts = [{one.verdict for one in cell} for cell in self.cells.values()]
        return sum(Verdict.UNCLEAR in found or found == {Verdict.TOO_FEW} for found in verdicts)


def compare(
    before: CellSamples,
    after: CellSamples,
    *,
    only_metrics: Collection[str] = METRICS,
    min_change: float = MIN_CHANGE,
) -> Comparison:
    cells = {}
    for key in sorted(before.keys() & after.keys()):
        old, new = before[key], after[key]
        judged = [
            judge(metric, old.get(metric.name, ()), new.get(metric.name, ()), min_change=min_change)
            for metric in judged_metrics(key[1])
            if metric.name in only_metrics
        ]
        if differences := [difference for difference in judged if difference]:
            cells[key] = differences
    return Comparison(
        cells=cells,
        only_before=sorted(before.keys() - after.keys()),
        only_after=sorted(after.keys() - before.keys()),
    )
