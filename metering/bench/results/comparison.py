"""Two builds or two targets, cell by cell: better, worse, or the same but for noise. Pure.

A metric has changed where the Mann-Whitney test is significant at ``ALPHA`` and its ratio is
further from 1 than ``MIN_CHANGE``: given enough samples, the test alone would call changes of no
size real. Where the test finds nothing and the ratio is as far from 1 as ``UNCLEAR_CHANGE``, the
samples are too noisy to call the sides the same.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from metering.bench.results.metrics import Metric, judged_metrics
from metering.bench.results.statistics import Ratio, least_p_value, mann_whitney, median, ratio_of

ALPHA = 0.01
"""Five samples on each side are the fewest that can reach it."""
MIN_CHANGE = 0.03
UNCLEAR_CHANGE = 0.2

Samples = Mapping[str, Sequence[float]]
"""Metric → values."""
CellSamples = Mapping[tuple[str, str], Samples]
"""(model, scenario id) → its samples."""


class Verdict(StrEnum):
    REGRESSED = "regressed"
    IMPROVED = "improved"
    UNCLEAR = "unclear"
    SAME = "same"
    TOO_FEW = "too few samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    metric: Metric
    num_before: int
    num_after: int
    median_before: float
    median_after: float
    ratio: Ratio | None
    """``None`` where a value is 0."""
    p_value: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CellComparison:
    model: str
    scenario: str
    differences: tuple[Difference, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of its metrics'."""
        found = {difference.verdict for difference in self.differences}
        return next((verdict for verdict in Verdict if verdict in found), Verdict.TOO_FEW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    cells: tuple[CellComparison, ...]
    only_before: tuple[tuple[str, str], ...]
    only_after: tuple[tuple[str, str], ...]

    @property
    def undecided(self) -> tuple[CellComparison, ...]:
        """The cells of which noise or too few samples hide whether they got worse."""
        unclear = self.having(Verdict.UNCLEAR)
        return tuple(
            cell for cell in self.cells if cell in unclear or cell.verdict is Verdict.TOO_FEW
        )

    def having(self, verdict: Verdict) -> tuple[CellComparison, ...]:
        return tuple(
            cell
            for cell in self.cells
            if any(difference.verdict is verdict for difference in cell.differences)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What differences show together. Of the ``num_too_few``, the one with the fewest samples has
    ``num_samples`` on one of its sides, and each side needs ``samples_needed``."""

    num_differences: int
    num_regressed: int
    num_improved: int
    num_unclear: int
    num_too_few: int
    num_samples: int
    samples_needed: int

    @property
    def num_judged(self) -> int:
        return self.num_differences - self.num_too_few


def outlook_of(differences: Iterable[Difference], *, alpha: float = ALPHA) -> Outlook:
    found = list(differences)
    verdicts = Counter(difference.verdict for difference in found)
    too_few = [one for one in found if one.verdict is Verdict.TOO_FEW]
    return Outlook(
        num_differences=len(found),
        num_regressed=verdicts[Verdict.REGRESSED],
        num_improved=verdicts[Verdict.IMPROVED],
        num_unclear=verdicts[Verdict.UNCLEAR],
        num_too_few=len(too_few),
        num_samples=min((min(one.num_before, one.num_after) for one in too_few), default=0),
        samples_needed=samples_needed(alpha),
    )


def samples_needed(alpha: float) -> int:
    """The fewest on each side with which a difference can be significant."""
    return next(number for number in itertools.count(1) if least_p_value(number, number) <= alpha)


def compare(
    before: CellSamples,
    after: CellSamples,
    *,
    only_metrics: frozenset[str] | None = None,
    alpha: float = ALPHA,
    min_change: float = MIN_CHANGE,
) -> Comparison:
    cells = []
    for model, scenario in sorted(before.keys() & after.keys()):
        differences = tuple(
            difference
            for metric in judged_metrics(scenario)
            if only_metrics is None or metric.name in only_metrics
            if (
                difference := judge(
                    metric,
                    before[model, scenario].get(metric.name, ()),
                    after[model, scenario].get(metric.name, ()),
                    alpha=alpha,
                    min_change=min_change,
                )
            )
        )
        if differences:
            cells.append(CellComparison(model=model, scenario=scenario, differences=differences))
    return Comparison(
        cells=tuple(cells),
        only_before=tuple(sorted(before.keys() - after.keys())),
        only_after=tuple(sorted(after.keys() - before.keys())),
    )


def judge(
    metric: Metric,
    before: Sequence[float],
    after: Sequence[float],
    *,
    alpha: float = ALPHA,
    min_change: float = MIN_CHANGE,
) -> Difference | None:
    """``None`` where one side has no samples."""
    median_before, median_after = median(before), median(after)
    if median_before is None or median_after is None:
        return None
    p_value = mann_whitney(before, after).p_value
    ratio = ratio_of(before, after)
    if least_p_value(len(before), len(after)) > alpha:
        verdict = Verdict.TOO_FEW
    elif p_value > alpha and ratio is not None and abs(ratio.estimate - 1) >= UNCLEAR_CHANGE:
        verdict = Verdict.UNCLEAR
    elif p_value > alpha or (ratio is not None and abs(ratio.estimate - 1) < min_change):
        verdict = Verdict.SAME
    else:
        has_more = ratio.estimate > 1 if ratio else median_after > median_before
        verdict = Verdict.IMPROVED if has_more == metric.more_is_better else Verdict.REGRESSED
    return Difference(
        metric=metric,
        num_before=len(before),
        num_after=len(after),
        median_before=median_before,
        median_after=median_after,
        ratio=ratio,
        p_value=p_value,
        verdict=verdict,
    )
