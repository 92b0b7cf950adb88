"""What a sweep still has to measure. Pure.

A cell is one model of one build of one target in one scenario. It is measured until it has its
samples, and skipped from then on until there is another build. Samples that failed do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metering.bench.sweeps.scenarios import Scenario

CellKey = tuple[str, str, str, str]
"""Target, build, model, scenario id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    target: str
    build: str
    model: str
    scenario: Scenario

    @property
    def key(self) -> CellKey:
        return self.target, self.build, self.model, self.scenario.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    cell: Cell
    num_samples: int

    @property
    def warms_up(self) -> bool:
        """Each sweep's first request to a cell is not measured: the server may have restarted since
        the last one."""
        return not self.cell.scenario.takes_offline


def work_left(
    cells: Iterable[Cell], num_done: Mapping[CellKey, int], *, samples_per_build: int
) -> list[Work]:
    """Model by model, so that models which share memory are not swapped more than needed; what
    takes a model offline comes last."""
    work = []
    for cell in dict.fromkeys(cells):
        missing = samples_per_build - num_done.get(cell.key, 0)
        if missing > 0:
            work.append(Work(cell=cell, num_samples=missing))
    first_seen = {key: number for number, key in enumerate(dict.fromkeys(map(_model_of, work)))}
    return sorted(
        work, key=lambda one: (first_seen[_model_of(one)], one.cell.scenario.takes_offline)
    )


def _model_of(work: Work) -> tuple[str, str]:
    return work.cell.target, work.cell.model
