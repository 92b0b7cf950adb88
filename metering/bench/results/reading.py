"""Reads of the bench's runs, grouped for comparison.

A *series* here is what one target gave for one model and one scenario; its *builds* are in the
order in which they were built, or first measured where the build's date is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Max, Min, QuerySet

from metering.bench.errors import BenchValueError
from metering.bench.models import BenchRun
from metering.bench.results.comparison import CellSamples
from metering.bench.results.metrics import METRICS

VALUE_COLUMNS = (
    *METRICS,
    "prompt_tokens_actual",
    "queue_wait_ms",
    "rejected",
    "concurrency",
    "vram_used_mb",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A build of one target."""

    target: str
    build: str
    git_sha: str = ""
    package_version: str = ""
    built_at: datetime | None = None
    first_at: datetime | None = None

    @property
    def age_key(self) -> tuple[datetime, str]:
        """Sorts builds, the oldest first."""
        moment = self.built_at or self.first_at
        assert moment is not None, "a build has runs"
        return moment, self.build


@dataclass(slots=True, kw_only=True)
class CellValues:
    """All samples of one cell that went well."""

    target: str
    build: Build
    model: str
    scenario: str
    hostname: str = ""
    gpus: tuple[str, ...] = ()
    num_samples: int = 0
    timing: str = ""
    values: dict[str, list[float]] = field(default_factory=dict)

    def of(self, metric: str) -> list[float]:
        return self.values.get(metric, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Empty words ask for everything."""

    target: str = ""
    host: str = ""
    model: str = ""
    scenario: str = ""
    scenario_prefix: str = ""

    def filtered(self, runs: QuerySet[BenchRun]) -> QuerySet[BenchRun]:
        for column, word in (
            ("target_name", self.target),
            ("hostname", self.host),
            ("model_id", self.model),
            ("scenario_id", self.scenario),
            ("scenario_id__startswith", self.scenario_prefix),
        ):
            if word:
                runs = runs.filter(**{column: word})
        return runs


def builds_list(target: str = "") -> dict[tuple[str, str], Build]:
    """Returns builds by target and build, oldest first."""
    rows = BenchRun.objects.filter(ok=True)
    if target:
        rows = rows.filter(target_name=target)
    found = (
        rows.order_by()
        .values("target_name", "build")
        .annotate(
            sha=Max("git_sha"),
            version=Max("package_version"),
            built_at=Max("build_timestamp"),
            first_at=Min("ts"),
        )
    )
    builds = [
        Build(
            target=row["target_name"],
            build=row["build"],
            git_sha=row["sha"],
            package_version=row["version"],
            built_at=row["built_at"],
            first_at=row["first_at"],
        )
        for row in found
    ]
    return {(one.target, one.build): one for one in sorted(builds, key=lambda one: one.age_key)}


def cells_list(where: Where) -> list[CellValues]:
    """Returns cells sorted by target, model, scenario and build, the oldest build first."""
    builds = builds_list(where.target)
    rows = (
        where.filtered(BenchRun.objects.filter(ok=True))
        .order_by("id")
        .values_list(
            *("target_name", "build", "model_id", "scenario_id", "hostname", "gpus", "timing"),
            *VALUE_COLUMNS,
        )
    )
    cells: dict[tuple[str, str, str, str], CellValues] = {}
    for target, build, model, scenario, hostname, gpus, timing, *values in rows.iterator():
        key = (target, model, scenario, build)
        cell = cells.get(key)
        if cell is None:
            known = builds[target, build]
            cell = CellValues(target=target, build=known, model=model, scenario=scenario)
            cells[key] = cell
        cell.hostname, cell.gpus, cell.timing = hostname, tuple(gpus), timing
        cell.num_samples += 1
        for name, value in zip(VALUE_COLUMNS, values, strict=True):
            if value is not None:
                cell.values.setdefault(name, []).append(value)
    order = {key: number for number, key in enumerate(builds)}
    return sorted(
        cells.values(),
        key=lambda one: (
            one.target,
            one.model,
            scenario_key(one.scenario),
            order[one.target, one.build.build],
        ),
    )


def scenario_key(scenario: str) -> tuple[Any, ...]:
    """``chat:128`` before ``chat:4096``."""
    return tuple(
        (0, int(word), "") if word.isdigit() else (1, 0, word) for word in scenario.split(":")
    )


def by_series(cells: Sequence[CellValues]) -> dict[tuple[str, str, str], list[CellValues]]:
    """(target, model, scenario) → its builds, oldest first."""
    series: dict[tuple[str, str, str], list[CellValues]] = {}
    for cell in cells:
        series.setdefault((cell.target, cell.model, cell.scenario), []).append(cell)
    return series


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: one target's build."""

    target: str
    build: str

    def __str__(self) -> str:
        return f"{self.target}@{self.build}"


def side_of(text: str, default: int = -1) -> Side:
    """``TARGET`` or ``TARGET@BUILD``; without a build the latest, or the one that ``default``
    counts from the end. Raises ``BenchValueError``."""
    builds = builds_list()
    targets = {target for target, _ in builds}
    target, build = text, ""
    if text not in targets:
        target, _, build = text.partition("@")
    of_target = [name for known, name in builds if known == target]
    if not of_target:
        known = ", ".join(sorted(targets)) or "nothing was measured yet"
        raise BenchValueError("target", f"{target!r} is no target with results: {known}")
    if build:
        if build not in of_target:
            raise BenchValueError(
                "build", f"{target} has no build {build!r}, but {', '.join(of_target)}"
            )
        return Side(target=target, build=build)
    if len(of_target) < -default:
        raise BenchValueError("build", f"{target} has no build before {of_target[-1]}")
    return Side(target=target, build=of_target[default])


def samples_of(side: Side, where: Where) -> CellSamples:
    cells = cells_list(Where(target=side.target, model=where.model, scenario=where.scenario))
    return {
        (cell.model, cell.scenario): cell.values for cell in cells if cell.build.build == side.build
    }


def dimension_rows() -> Sequence[Mapping[str, Any]]:
    """Which hosts, models, scenarios and GPUs there are together."""
    return list(
        BenchRun.objects.order_by().values("hostname", "model_id", "scenario_id", "gpus").distinct()
    )
