"""Compares two builds or two targets, cell by cell: better, worse, or the same but for noise. Pure.

Each side is a median and its median absolute deviation (MAD). A metric has changed where the
medians are further apart than ``NOISE_MADS`` times the sum of both MADs, and by at least
``MIN_CHANGE``: otherwise samples that hardly vary would make tiny changes real. Where medians are
``UNCLEAR_CHANGE`` apart or more, but within that noise, the samples are too noisy for a verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_SAMPLES = 5
"""On each side. The MAD of fewer is too often small by chance."""
NOISE_MADS = 3.0
"""Of 1,000 pairs of five samples that differ by chance alone, 15 are called changed."""
MIN_CHANGE = 0.03
UNCLEAR_CHANGE = 0.2

CellSamples = Mapping[tuple[str, str], Mapping[str, Sequence[float]]]
"""(model, scenario id) → metric → values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    """The column of a run."""
    label: str
    unit: str
    more_is_better: bool


TTFT = Metric(name="ttft_s", label="TTFT", unit="s", more_is_better=False)
TTFT_P95 = Metric(name="ttft_p95_s", label="TTFT p95", unit="s", more_is_better=False)
DECODE = Metric(name="decode_tps", label="decode", unit="tok/s", more_is_better=True)
PREFILL = Metric(name="prefill_tps", label="prefill", unit="tok/s", more_is_better=True)
LOAD = Metric(name="swap_load_ms", label="load", unit="ms", more_is_better=False)
UNLOAD = Metric(name="swap_unload_ms", label="unload", unit="ms", more_is_better=False)

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
class CellComparison:
    model: str
    scenario: str
    differences: tuple[Difference, ...]

    def has(self, *verdicts: Verdict) -> bool:
        return any(difference.verdict in verdicts for difference in self.differences)

    @property
    def is_undecided(self) -> bool:
        """Whether noise or too few samples hide a regression."""
        return self.has(Verdict.UNCLEAR) or all(
            difference.verdict is Verdict.TOO_FEW for difference in self.differences
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    cells: tuple[CellComparison, ...]
    only_before: tuple[tuple[str, str], ...]
    only_after: tuple[tuple[str, str], ...]

    @property
    def num_regressed(self) -> int:
        return sum(cell.has(Verdict.REGRESSED) for cell in self.cells)

    @property
    def num_improved(self) -> int:
        return sum(cell.has(Verdict.IMPROVED) for cell in self.cells)

    @property
    def num_undecided(self) -> int:
        return sum(cell.is_undecided for cell in self.cells)


def compare(
    before: CellSamples,
    after: CellSamples,
    *,
    only_metrics: frozenset[str] = frozenset(METRICS),
    min_change: float = MIN_CHANGE,
) -> Comparison:
    cells = []
    for model, scenario in sorted(before.keys() & after.keys()):
        old, new = before[model, scenario], after[model, scenario]
        judged = (
            judge(metric, old.get(metric.name, ()), new.get(metric.name, ()), min_change=min_change)
            for metric in judged_metrics(scenario)
            if metric.name in only_metrics
        )
        if differences := tuple(filter(None, judged)):
            cells.append(CellComparison(model=model, scenario=scenario, differences=differences))
    return Comparison(
        cells=tuple(cells),
        only_before=tuple(sorted(before.keys() - after.keys())),
        only_after=tuple(sorted(after.keys() - before.keys())),
    )
