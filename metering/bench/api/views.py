"""``GET /api/bench/…``: the original's paths and fields, as plain JSON without pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.response import Response

from fleet.api.access import Call
from metering.api.problems import ProblemError
from metering.api.schema import ROWS
from metering.bench.api.access import BenchView
from metering.bench.models import BenchRun
from metering.bench.results import summaries
from metering.bench.results.comparison import ALPHA, MIN_CHANGE, Verdict, compare
from metering.bench.results.reading import (
    CellValues,
    Where,
    builds_list,
    cells_list,
    dimension_rows,
    samples_of,
    side_of,
)
from metering.bench.results.report import comparison_rows
from metering.bench.results.run_rows import RUN_FILTERS, run_row, runs_filtered

Get = TypeVar("Get", bound=Callable[..., Response])
DEFAULT_RUNS = 500
MAX_RUNS = 5000
CELL_FILTERS = ("target", "host", "model", "scenario")


def _parameters(*names: str, answers: Any = ROWS) -> Callable[[Get], Get]:
    decorate: Callable[[Get], Get] = extend_schema(
        parameters=[OpenApiParameter(name, str) for name in names], responses={200: answers}
    )
    return decorate


class HealthView(BenchView):
    def get(self, call: Call) -> Response:
        return Response({"status": "ok", "run_count": BenchRun.objects.count()})


class DimensionsView(BenchView):
    """What there are results of."""

    def get(self, call: Call) -> Response:
        rows = dimension_rows()
        host_gpus: dict[str, set[str]] = {}
        model_gpus: dict[str, set[str]] = {}
        for row in rows:
            host_gpus.setdefault(row["hostname"], set()).update(row["gpus"])
            model_gpus.setdefault(row["model_id"], set()).update(row["gpus"])
        builds = {one.git_sha or one.build: one for one in builds_list().values()}
        return Response(
            {
                "hosts": sorted(host_gpus),
                "models": sorted(model_gpus),
                "scenarios": sorted({row["scenario_id"] for row in rows}),
                "targets": sorted({target for target, _ in builds_list()}),
                "builds": [
                    {
                        "git_sha": sha,
                        "build_timestamp": one.built_at.isoformat() if one.built_at else None,
                        "package_version": one.package_version,
                    }
                    for sha, one in builds.items()
                ],
                "host_gpus": {name: sorted(gpus) for name, gpus in host_gpus.items()},
                "model_gpus": {name: sorted(gpus) for name, gpus in model_gpus.items()},
            }
        )


class CellsView(BenchView):
    """A table of cells, filtered."""

    parameters = CELL_FILTERS

    @_parameters(*CELL_FILTERS)
    def get(self, call: Call) -> Response:
        return Response(self.rows(cells_list(self.where())))

    def rows(self, cells: list[CellValues]) -> list[dict[str, Any]]:
        raise NotImplementedError

    def where(self) -> Where:
        return Where(
            target=self.word("target"),
            host=self.word("host"),
            model=self.word("model"),
            scenario=self.word("scenario"),
        )


class SummaryView(CellsView):
    """Each cell's latest build."""

    def rows(self, cells: list[CellValues]) -> list[dict[str, Any]]:
        return [summaries.summary_row(cell) for cell in summaries.latest_of_each(cells)]


class SeriesView(CellsView):
    """One model and scenario over its builds, oldest first."""

    def where(self) -> Where:
        self.word("model", is_needed=True)
        self.word("scenario", is_needed=True)
        return super().where()

    def rows(self, cells: list[CellValues]) -> list[dict[str, Any]]:
        by_age = sorted(cells, key=lambda cell: cell.build.age_key)
        return [summaries.series_row(cell) for cell in by_age]


class ScalingView(CellsView):
    def rows(self, cells: list[CellValues]) -> list[dict[str, Any]]:
        return summaries.scaling_rows(summaries.latest_builds(cells))


class ConcurrencyView(CellsView):
    def rows(self, cells: list[CellValues]) -> list[dict[str, Any]]:
        return summaries.concurrency_rows(summaries.latest_builds(cells))


class SwapView(CellsView):
    def rows(self, cells: list[CellValues]) -> list[dict[str, Any]]:
        return summaries.swap_rows(summaries.latest_of_each(cells))


class RunsView(BenchView):
    """Single samples, the newest first."""

    parameters = (*RUN_FILTERS, "limit")

    @_parameters(*parameters)
    def get(self, call: Call) -> Response:
        limit = self.number("limit", DEFAULT_RUNS, most=MAX_RUNS)
        runs = runs_filtered({name: self.word(name) for name in RUN_FILTERS})
        return Response([run_row(run) for run in runs[:limit]])


class CompareView(BenchView):
    """``?before=TARGET@BUILD&after=TARGET@BUILD``, as ``manage.py bench compare``."""

    parameters = ("before", "after", "model", "scenario")

    @_parameters(*parameters, answers=OpenApiTypes.OBJECT)
    def get(self, call: Call) -> Response:
        given = self.word("before", is_needed=True)
        after = side_of(self.word("after") or given)
        before = side_of(given, default=-1 if self.word("after") else -2)
        where = Where(model=self.word("model"), scenario=self.word("scenario"))
        comparison = compare(samples_of(before, where), samples_of(after, where))
        if not comparison.cells:
            raise ProblemError(404, "unknown_url", f"{before} and {after} have no cell in common.")
        return Response(
            {
                "before": str(before),
                "after": str(after),
                "test": "Mann-Whitney U, two-sided",
                "alpha": ALPHA,
                "min_change": MIN_CHANGE,
                "regressed": len(comparison.having(Verdict.REGRESSED)),
                "improved": len(comparison.having(Verdict.IMPROVED)),
                "cells": comparison_rows(comparison),
            }
        )
