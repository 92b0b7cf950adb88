"""Reads the bench's runs: single ones, and grouped in cells.

A *cell* is one model of one build of one target in one scenario; a *series* is a target's cells of
one model and scenario over its builds. Builds are in the order in which they were built, or first
measured where the build's date is unknown. Fields are named as the original system names them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import F, Max, Min, Q, QuerySet

from metering.bench.measures import METRICS, CellSamples, Comparison, compare, median
from metering.bench.models import BenchRun
from metering.errors import BenchValueError

Row = dict[str, Any]
CELL_FILTERS = {
    "target": "target_name",
    "host": "hostname",
    "model": "model_id",
    "scenario": "scenario_id",
}
RUN_FILTERS = (*CELL_FILTERS, "sha", "gpu", "ok")
TEXT_COLUMNS = {name: f"{name}_json" for name in ("gpus", "features", "capabilities", "devices")}
"""JSON that the original sends as text, by its names."""
COLUMNS = tuple(column.name for column in BenchRun._meta.concrete_fields)
VALUES = (
    *METRICS,
    *("total_s", "prompt_tokens_actual", "queue_wait_ms", "rejected", "concurrency"),
    *("vram_used_mb", "quality_score"),
)


def cell_filters(words: Mapping[str, Any]) -> dict[str, str]:
    return {column: words[name] for name, column in CELL_FILTERS.items() if words.get(name)}


def runs_filtered(words: Mapping[str, str]) -> QuerySet[BenchRun]:
    """``words``: of ``RUN_FILTERS``. The newest first. Raises ``BenchValueError``."""
    runs = BenchRun.objects.order_by("-id").filter(**cell_filters(words))
    if sha := words.get("sha"):
        runs = runs.filter(Q(git_sha=sha) | Q(build=sha))
    if gpu := words.get("gpu"):
        # SQLite cannot search the lists within JSON.
        found = [pk for pk, gpus in runs.values_list("pk", "gpus") if gpu in gpus]
        runs = runs.filter(pk__in=found)
    if ok := words.get("ok"):
        if ok not in ("1", "0", "true", "false"):
            raise BenchValueError("ok", f"{ok!r} is neither true nor false")
        runs = runs.filter(ok=ok in ("1", "true"))
    return runs


def run_row(run: BenchRun) -> Row:
    row = {}
    for name in COLUMNS:
        value = getattr(run, name)
        if name in TEXT_COLUMNS:
            row[TEXT_COLUMNS[name]] = json.dumps(value)
        else:
            row[name] = value.isoformat() if isinstance(value, datetime) else value
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    target: str
    build: str
    sha: str
    version: str
    built_at: datetime | None
    first_at: datetime

    def __str__(self) -> str:
        return f"{self.target}@{self.build}"

    @property
    def age_key(self) -> tuple[datetime, str]:
        return self.built_at or self.first_at, self.build

    @property
    def commit(self) -> Row:
        return {
            "git_sha": self.sha or self.build,
            "build_timestamp": self.built_at.isoformat() if self.built_at else None,
            "package_version": self.version,
        }


@dataclass(slots=True, kw_only=True)
class Cell:
    build: Build
    model: str
    scenario: str
    hostname: str = ""
    gpus: Sequence[str] = ()
    timing: str = ""
    num_samples: int = 0
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in VALUES})

    @property
    def target(self) -> str:
        return self.build.target

    def median(self, name: str) -> float | None:
        return median(self.values[name])


def builds_list() -> dict[tuple[str, str], Build]:
    """By target and build, oldest first."""
    rows = BenchRun.objects.filter(ok=True).order_by().values("build", target=F("target_name"))
    found = rows.annotate(
        sha=Max("git_sha"),
        version=Max("package_version"),
        built_at=Max("build_timestamp"),
        first_at=Min("ts"),
    )
    builds = sorted((Build(**row) for row in found), key=lambda one: one.age_key)
    return {(one.target, one.build): one for one in builds}


def cells_list(**filters: str) -> list[Cell]:
    """``filters``: by columns. Sorted by target, model, scenario and build, the oldest first."""
    builds = builds_list()
    rows = BenchRun.objects.filter(ok=True, **filters).order_by("id")
    names = ("target_name", "build", "model_id", "scenario_id", "hostname", "gpus", "timing")
    cells: dict[tuple[str, str, str, str], Cell] = {}
    for target, build, model, scenario, hostname, gpus, timing, *values in rows.values_list(
        *names, *VALUES
    ).iterator():
        key = (target, build, model, scenario)
        if key not in cells:
            cells[key] = Cell(build=builds[target, build], model=model, scenario=scenario)
        cell = cells[key]
        cell.hostname, cell.gpus, cell.timing = hostname, gpus, timing
        cell.num_samples += 1
        for name, value in zip(VALUES, values, strict=True):
            if value is not None:
                cell.values[name].append(value)
    return sorted(
        cells.values(),
        key=lambda one: (one.target, one.model, scenario_key(one.scenario), one.build.age_key),
    )


def scenario_key(scenario: str) -> list[tuple[bool, int, str]]:
    """``chat:128`` before ``chat:4096``."""
    words = scenario.split(":")
    return [(False, int(one), "") if one.isdigit() else (True, 0, one) for one in words]


def by_series(cells: Sequence[Cell]) -> list[list[Cell]]:
    series: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        series.setdefault((cell.target, cell.model, cell.scenario), []).append(cell)
    return list(series.values())


def latest_of_each(cells: Sequence[Cell]) -> list[Cell]:
    return [builds[-1] for builds in by_series(cells)]


def latest_builds(cells: Sequence[Cell]) -> list[Cell]:
    by_age = sorted(cells, key=lambda one: one.build.age_key)
    newest = {cell.target: cell.build for cell in by_age}
    return [cell for cell in cells if newest[cell.target] == cell.build]


def compared(
    before: str, after: str, words: Mapping[str, Any], **options: Any
) -> tuple[Build, Build, Comparison]:
    """Both sides are ``TARGET``, of which the latest build counts, or ``TARGET@BUILD``; without
    ``after``, the latest build of ``before`` and the one before it. ``words``: of ``CELL_FILTERS``.
    ``options``: those of ``compare``. Raises ``BenchValueError``."""
    sides = _side_of(before, -1 if after else -2), _side_of(after or before, -1)
    filters = cell_filters(words)
    old, new = (cells_list(target_name=side.target, build=side.build, **filters) for side in sides)
    return *sides, compare(_samples_of(old), _samples_of(new), **options)


def _side_of(text: str, position: int) -> Build:
    builds = builds_list()
    targets = {target for target, _ in builds}
    target, _, build = (text, "", "") if text in targets else text.partition("@")
    of_target = [name for known, name in builds if known == target]
    if not of_target:
        known = ", ".join(sorted(targets)) or "nothing was measured yet"
        raise BenchValueError("target", f"{target!r} is no target with results: {known}")
    if build and build not in of_target:
        names = ", ".join(of_target)
        raise BenchValueError("build", f"{target} has no build {build!r}, but {names}")
    if not build and len(of_target) < -position:
        raise BenchValueError("build", f"{target} has no build before {of_target[-1]}")
    return builds[target, build or of_target[position]]


def _samples_of(cells: Sequence[Cell]) -> CellSamples:
    return {(cell.model, cell.scenario): cell.values for cell in cells}
