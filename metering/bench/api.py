"""``GET /api/bench/…``: the results in the original's paths and fields, as JSON without pages.

Readers are callers who may read the fleet, or everybody with ``HELEXA_BENCH_PUBLIC``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.urls import path, re_path
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api.access import READING, ObjectView, number_in
from metering.api.authentication import Authentication, Caller
from metering.api.problems import ProblemError
from metering.api.schema import ROWS
from metering.api.views import UnknownUrlView
from metering.bench import results, summaries
from metering.bench.comparison import MIN_CHANGE, MIN_SAMPLES, NOISE_MADS
from metering.bench.models import BenchRun
from metering.bench.results import CELL_FILTERS, RUN_FILTERS, Cell, Row

DEFAULT_RUNS = 500
MAX_RUNS = 5000


class PublicAuthentication(Authentication):
    """No caller is authenticated: a key that is sent is ignored."""

    def authenticate(self, _request: Request) -> tuple[AnonymousUser, Caller]:
        return AnonymousUser(), Caller(principal=None)


def _parameters(names: Iterable[str]) -> list[OpenApiParameter]:
    return [OpenApiParameter(name, str) for name in names]


class BenchView(ObjectView):
    page_parameters: tuple[str, ...] = ()

    def get_authenticators(self) -> list[Any]:
        if settings.CONFIG.has_public_bench:
            return [PublicAuthentication()]
        return super().get_authenticators()

    def ensure_may(self, request: Request) -> None:
        if not (settings.CONFIG.has_public_bench and request.method in READING):
            super().ensure_may(request)

    def word(self, name: str, *, is_needed: bool = False) -> str:
        word: str = self.request.query_params.get(name, "")
        if is_needed and not word:
            raise ProblemError(400, "invalid_value", f"{name} is needed.", param=name)
        return word

    def cell_filters(self) -> dict[str, str]:
        return results.cell_filters({name: self.word(name) for name in CELL_FILTERS})


class HealthView(BenchView):
    def get(self, request: Request) -> Response:
        return Response({"status": "ok", "run_count": BenchRun.objects.count()})


class DimensionsView(BenchView):
    """The targets, builds, models and scenarios with results."""

    def get(self, request: Request) -> Response:
        runs = BenchRun.objects.order_by()
        rows = runs.values_list("hostname", "model_id", "scenario_id", "gpus").distinct()
        host_gpus: dict[str, set[str]] = {}
        model_gpus: dict[str, set[str]] = {}
        for hostname, model, _, gpus in rows:
            host_gpus.setdefault(hostname, set()).update(gpus)
            model_gpus.setdefault(model, set()).update(gpus)
        found = results.builds_list()
        builds = {one.git_sha or one.build: one for one in found.values()}
        return Response(
            {
                "hosts": sorted(host_gpus),
                "models": sorted(model_gpus),
                "scenarios": sorted({scenario for _, _, scenario, _ in rows}),
                "targets": sorted({target for target, _ in found}),
                "builds": [summaries.commit_fields(one) for one in builds.values()],
                "host_gpus": {name: sorted(gpus) for name, gpus in host_gpus.items()},
                "model_gpus": {name: sorted(gpus) for name, gpus in model_gpus.items()},
            }
        )


class CellsView(BenchView):
    """A table of cells, filtered."""

    page_parameters = tuple(CELL_FILTERS)

    @extend_schema(parameters=_parameters(CELL_FILTERS), responses={200: ROWS})
    def get(self, request: Request) -> Response:
        return Response(self.rows(results.cells_list(**self.cell_filters())))

    def rows(self, cells: list[Cell]) -> list[Row]:
        raise NotImplementedError


class SummaryView(CellsView):
    """Each cell's latest build."""

    def rows(self, cells: list[Cell]) -> list[Row]:
        return summaries.summary_rows(results.latest_of_each(cells))


class SeriesView(CellsView):
    """One model and scenario over its builds, oldest first."""

    def rows(self, cells: list[Cell]) -> list[Row]:
        return summaries.series_rows(cells)

    def cell_filters(self) -> dict[str, str]:
        self.word("model", is_needed=True)
        self.word("scenario", is_needed=True)
        return super().cell_filters()


class ScalingView(CellsView):
    def rows(self, cells: list[Cell]) -> list[Row]:
        return summaries.scaling_rows(results.latest_builds(cells))


class ConcurrencyView(CellsView):
    def rows(self, cells: list[Cell]) -> list[Row]:
        return summaries.concurrency_rows(results.latest_builds(cells))


class SwapView(CellsView):
    def rows(self, cells: list[Cell]) -> list[Row]:
        return summaries.swap_rows(results.latest_of_each(cells))


class RunsView(BenchView):
    """Single samples, the newest first."""

    page_parameters = (*RUN_FILTERS, "limit")

    @extend_schema(parameters=_parameters(page_parameters), responses={200: ROWS})
    def get(self, request: Request) -> Response:
        limit = number_in(request, "limit", DEFAULT_RUNS, 1, MAX_RUNS)
        runs = results.runs_filtered({name: self.word(name) for name in RUN_FILTERS})
        return Response([results.run_row(run) for run in runs[:limit]])


class CompareView(BenchView):
    """``?before=TARGET@BUILD&after=TARGET@BUILD``, as ``manage.py bench compare``."""

    page_parameters = ("before", "after", "model", "scenario")

    @extend_schema(parameters=_parameters(page_parameters))
    def get(self, request: Request) -> Response:
        before, after = results.sides_of(self.word("before", is_needed=True), self.word("after"))
        filters = {name: self.word(name) for name in ("model", "scenario")}
        comparison = results.compared(before, after, filters)
        if not comparison.cells:
            raise ProblemError(404, "unknown_url", f"{before} and {after} have no cell in common.")
        return Response(
            {
                "before": str(before),
                "after": str(after),
                "noise_mads": NOISE_MADS,
                "min_change": MIN_CHANGE,
                "min_samples": MIN_SAMPLES,
                "regressed": comparison.num_regressed,
                "improved": comparison.num_improved,
                "cells": summaries.comparison_rows(comparison),
            }
        )


urlpatterns = [
    path("health", HealthView.as_view()),
    path("dimensions", DimensionsView.as_view()),
    path("summary", SummaryView.as_view()),
    path("series", SeriesView.as_view()),
    path("runs", RunsView.as_view()),
    path("scaling", ScalingView.as_view()),
    path("concurrency", ConcurrencyView.as_view()),
    path("swap", SwapView.as_view()),
    path("compare", CompareView.as_view()),
    re_path(r"", UnknownUrlView.as_view()),
]
