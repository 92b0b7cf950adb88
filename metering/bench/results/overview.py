"""Each series' latest build beside the one before and the best of all. Pure over cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metering.bench.results.comparison import Difference, Verdict, judge
from metering.bench.results.metrics import Metric, judged_metrics
from metering.bench.results.reading import CellValues, by_series
from metering.bench.results.statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """How the latest build stands to another one."""

    build: str
    difference: Difference

    @property
    def is_regression(self) -> bool:
        return self.difference.verdict is Verdict.REGRESSED

    @property
    def is_improvement(self) -> bool:
        return self.difference.verdict is Verdict.IMPROVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one metric of one series stands."""

    target: str
    scenario: str
    metric: Metric
    build: str
    median: float
    num_samples: int
    previous: Beside | None
    best: Beside | None
    """``None`` where the latest build is the best."""

    @property
    def is_regression(self) -> bool:
        return self.previous is not None and self.previous.is_regression


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStandings:
    """How one model on one kind of GPU stands."""

    model: str
    gpus: str
    standings: tuple[Standing, ...]


def overview_of(cells: Sequence[CellValues]) -> list[ModelStandings]:
    groups: dict[tuple[str, str], list[Standing]] = {}
    for (target, model, scenario), builds in by_series(cells).items():
        latest = builds[-1]
        found = groups.setdefault((model, gpus_text(latest.gpus)), [])
        for metric in judged_metrics(scenario):
            if standing := _standing(target, scenario, metric, builds):
                found.append(standing)
    return [
        ModelStandings(model=model, gpus=gpus, standings=tuple(standings))
        for (model, gpus), standings in sorted(groups.items())
        if standings
    ]


def gpus_text(gpus: Sequence[str]) -> str:
    """``2 x RTX 3090``."""
    counts = {name: list(gpus).count(name) for name in dict.fromkeys(gpus)}
    return ", ".join(name if num == 1 else f"{num} x {name}" for name, num in counts.items())


def _standing(
    target: str, scenario: str, metric: Metric, builds: Sequence[CellValues]
) -> Standing | None:
    measured = [cell for cell in builds if cell.of(metric.name)]
    if not measured or measured[-1] is not builds[-1]:
        return None
    latest, before = measured[-1], measured[:-1]
    value = median(latest.of(metric.name))
    assert value is not None, "it has samples"
    best = max(measured, key=lambda cell: _goodness(metric, cell))
    return Standing(
        target=target,
        scenario=scenario,
        metric=metric,
        build=latest.build.build,
        median=value,
        num_samples=len(latest.of(metric.name)),
        previous=_beside(metric, before[-1], latest) if before else None,
        best=_beside(metric, best, latest) if best is not latest else None,
    )


def _goodness(metric: Metric, cell: CellValues) -> float:
    value = median(cell.of(metric.name)) or 0.0
    return value if metric.more_is_better else -value


def _beside(metric: Metric, other: CellValues, latest: CellValues) -> Beside:
    difference = judge(metric, other.of(metric.name), latest.of(metric.name))
    assert difference is not None, "both have samples"
    return Beside(build=other.build.build, difference=difference)
