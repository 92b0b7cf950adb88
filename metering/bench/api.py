"""``GET /api/bench/…``: the results in the original's paths and fields. Readers are callers who may
read the fleet, or everybody with ``HELEXA_BENCH_PUBLIC``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.urls import path, re_path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api.access import READING, ObjectView, number_in
from metering.api.problems import ProblemError
from metering.api.schema import ROWS
from metering.api.views import UnknownUrlView
from metering.bench import results
from metering.bench.measures import MIN_CHANGE, MIN_SAMPLES, NOISE_MADS, Verdict
from metering.bench.models import BenchRun
from metering.bench.results import CELL_FILTERS, RUN_FILTERS
from metering.bench.tables import VIEWS, comparison_rows, view_rows

DEFAULT_RUNS = 500
MAX_RUNS = 5000


def _parameters(names: Iterable[str]) -> list[OpenApiParameter]:
    return [OpenApiParameter(name, str) for name in names]


@extend_schema(responses={200: OpenApiTypes.OBJECT})
class BenchView(ObjectView):
    filter_backends = ()
    page_parameters: tuple[str, ...] = ()

    def get_authenticators(self) -> list[Any]:
        """None for a public bench: a key that is sent is ignored."""
        return [] if settings.CONFIG.has_public_bench else super().get_authenticators()

    def ensure_may(self, request: Request) -> None:
        if not settings.CONFIG.has_public_bench:
            super().ensure_may(request)
        elif request.method not in READING:
            raise ProblemError(403, "insufficient_scope", "The bench's results can only be read.")

    def word(self, name: str, *, is_needed: bool = False) -> str:
        word: str = self.request.query_params.get(name, "")
        if is_needed and not word:
            raise ProblemError(400, "invalid_value", f"{name} is needed.", param=name)
        return word

    def words(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self.word(name) for name in names}


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
        builds = results.builds_list().values()
        commits = {one.commit["git_sha"]: one.commit for one in builds}
        return Response(
            {
                "hosts": sorted(host_gpus),
                "models": sorted(model_gpus),
                "scenarios": sorted({scenario for _, _, scenario, _ in rows}),
                "targets": sorted({one.target for one in builds}),
                "builds": list(commits.values()),
                "host_gpus": {name: sorted(gpus) for name, gpus in host_gpus.items()},
                "model_gpus": {name: sorted(gpus) for name, gpus in model_gpus.items()},
            }
        )


class CellsView(BenchView):
    """Cells, filtered: ``summary`` and ``swap`` have each cell's latest build, ``scaling`` and
    ``concurrency`` each target's, ``series`` all builds of one model and scenario, oldest first."""

    page_parameters = tuple(CELL_FILTERS)
    view = ""

    @extend_schema(parameters=_parameters(CELL_FILTERS), responses={200: ROWS})
    def get(self, request: Request) -> Response:
        if self.view == "series":
            self.word("model", is_needed=True)
            self.word("scenario", is_needed=True)
        cells = results.cells_list(**results.cell_filters(self.words(CELL_FILTERS)))
        if self.view in ("summary", "swap"):
            cells = results.latest_of_each(cells)
        elif self.view != "series":
            cells = results.latest_builds(cells)
        return Response(view_rows(self.view, cells))


class RunsView(BenchView):
    """Single samples, the newest first."""

    page_parameters = (*RUN_FILTERS, "limit")

    @extend_schema(parameters=_parameters(page_parameters), responses={200: ROWS})
    def get(self, request: Request) -> Response:
        limit = number_in(request, "limit", DEFAULT_RUNS, 1, MAX_RUNS)
        runs = results.runs_filtered(self.words(RUN_FILTERS))
        return Response([results.run_row(run) for run in runs[:limit]])


class CompareView(BenchView):
    """``?before=TARGET@BUILD&after=TARGET@BUILD``, as ``manage.py bench compare``."""

    page_parameters = ("before", "after", "model", "scenario")

    @extend_schema(parameters=_parameters(page_parameters))
    def get(self, request: Request) -> Response:
        before, after, comparison = results.compared(
            self.word("before", is_needed=True),
            self.word("after"),
            self.words(("model", "scenario")),
        )
        if not comparison.cells:
            raise ProblemError(404, "unknown_url", f"{before} and {after} have no cell in common.")
        return Response(
            {
                "before": str(before),
                "after": str(after),
                "noise_mads": NOISE_MADS,
                "min_change": MIN_CHANGE,
                "min_samples": MIN_SAMPLES,
                "regressed": comparison.num_with(Verdict.REGRESSED),
                "improved": comparison.num_with(Verdict.IMPROVED),
                "cells": comparison_rows(comparison),
            }
        )


urlpatterns = [
    path("health", HealthView.as_view()),
    path("dimensions", DimensionsView.as_view()),
    *(path(view, CellsView.as_view(view=view)) for view in VIEWS),
    path("runs", RunsView.as_view()),
    path("compare", CompareView.as_view()),
    re_path(r"", UnknownUrlView.as_view()),
]
