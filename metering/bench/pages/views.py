"""Overview, trends, concurrency, comparison and runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from metering.bench import charts, results, summaries
from metering.bench.comparison import MIN_CHANGE, outlook_of
from metering.bench.comparison import compare as compare_sides
from metering.bench.models import BenchRun
from metering.bench.pages.access import bench_page, shown

MAX_SHOWN = 200
MAX_CSV = 50_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter of a form."""

    name: str
    label: str
    values: list[str]
    chosen: str
    any_label: str = ""
    """What stands for no choice; empty where there always is one."""


@bench_page
def overview(request: HttpRequest) -> HttpResponse:
    groups = summaries.standings_of(results.cells_list())
    previous = [one.previous for group in groups.values() for one in group if one.previous]
    context = {"groups": groups, "outlook": outlook_of(previous), "min_change": MIN_CHANGE}
    return shown(request, "bench/overview.html", "bench-overview", context)


@bench_page
def trends(request: HttpRequest) -> HttpResponse:
    models, scenarios = _values("model_id"), _scenarios()
    model, scenario = _chosen(request, "model", models), _chosen(request, "scenario", scenarios)
    cells = results.cells_list(model_id=model, scenario_id=scenario)
    targets = sorted({cell.target for cell in cells})
    target = _chosen(request, "target", _most_builds_first(cells))
    context = {
        "choices": [
            Choice("model", "Model", models, model),
            Choice("scenario", "Scenario", scenarios, scenario),
            Choice("target", "Target", targets, target),
        ],
        "charts": charts.trend_charts(cells, target),
        "rows": summaries.series_rows(cells),
    }
    return shown(request, "bench/trends.html", "bench-trends", context)


@bench_page
def concurrency(request: HttpRequest) -> HttpResponse:
    found = results.cells_list(scenario_id__startswith="concurrency:")
    cells = results.latest_builds(found)
    context = {
        "chart": charts.concurrency_chart(cells),
        "rows": summaries.concurrency_rows(cells),
        "knee_latency": summaries.KNEE_LATENCY,
    }
    return shown(request, "bench/concurrency.html", "bench-concurrency", context)


@bench_page
def compare(request: HttpRequest) -> HttpResponse:
    sides = list(map(str, results.builds_list().values()))
    before, after = (_chosen(request, name, sides) for name in ("before", "after"))
    if sides and not request.GET.get("before"):
        before, after = _latest_two(sides)
    comparison = None
    if before and after:
        builds = results.sides_of(before, after)
        comparison = compare_sides(*map(results.samples_of, builds))
    context = {
        "choices": [
            Choice("before", "Before", sides, before),
            Choice("after", "After", sides, after),
        ],
        "before": before,
        "after": after,
        "comparison": comparison,
        "outlook": outlook_of(
            one for cell in (comparison.cells if comparison else ()) for one in cell.differences
        ),
        "min_change": MIN_CHANGE,
    }
    return shown(request, "bench/compare.html", "bench-compare", context)


@bench_page
def runs(request: HttpRequest) -> HttpResponse:
    words = _filters(request)
    found = results.runs_filtered(words)
    lists = BenchRun.objects.order_by().values_list("gpus", flat=True).distinct()
    gpus = sorted({gpu for gpus in lists for gpu in gpus})
    context = {
        "choices": [
            Choice("target", "Target", _values("target_name"), words["target"], "all"),
            Choice("gpu", "GPU", gpus, words["gpu"], "all"),
            Choice("model", "Model", _values("model_id"), words["model"], "all"),
            Choice(
                "scenario",
                "Scenario",
                _scenarios(),
                words["scenario"],
                "all",
            ),
            Choice("sha", "Build", _values("build"), words["sha"], "all"),
            Choice("ok", "Outcome", ["true", "false"], words["ok"], "all"),
        ],
        "runs": found[:MAX_SHOWN],
        "num_runs": found.count(),
        "max_shown": MAX_SHOWN,
        "query": request.GET.urlencode(),
    }
    return shown(request, "bench/runs.html", "bench-runs", context)


@bench_page
def runs_as_csv(request: HttpRequest) -> HttpResponse:
    text = _csv(results.runs_filtered(_filters(request))[:MAX_CSV])
    return HttpResponse(
        text,
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="bench-runs.csv"'},
    )


@bench_page
def run(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(BenchRun, pk=pk)
    shown_apart = ("artifact", "error", "detail", "settings")
    fields = {
        name: value
        for name, value in results.run_row(found).items()
        if value not in (None, "", "[]") and name not in shown_apart
    }
    context = {
        "run": found,
        "fields": fields,
        "detail": json.dumps(found.detail, indent=2) if found.detail else "",
        "settings_text": json.dumps(found.settings, indent=2) if found.settings else "",
    }
    return shown(request, "bench/run.html", "bench-runs", context)


def _filters(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "").replace("\x00", "") for name in results.RUN_FILTERS}


def _values(column: str) -> list[str]:
    found = BenchRun.objects.order_by(column).values_list(column, flat=True).distinct()
    return list(found)


def _chosen(request: HttpRequest, name: str, values: list[str]) -> str:
    """The requested value, where it exists, else the first."""
    word = request.GET.get(name, "")
    return word if word in values else (values[0] if values else "")


def _scenarios() -> list[str]:
    return sorted(_values("scenario_id"), key=results.scenario_key)


def _most_builds_first(cells: list[results.Cell]) -> list[str]:
    builds: dict[str, int] = {}
    for cell in cells:
        builds[cell.target] = builds.get(cell.target, 0) + 1
    return sorted(builds, key=lambda name: (-builds[name], name))


def _latest_two(sides: list[str]) -> tuple[str, str]:
    """Returns the sides compared where none are chosen: the newest build and the one before it of
    the same target."""
    after = sides[-1]
    target = after.rpartition("@")[0]
    same = [side for side in sides if side.rpartition("@")[0] == target]
    return (same[-2] if len(same) > 1 else sides[0]), after


def _csv(runs: Iterable[BenchRun]) -> str:
    """One line a run, after the names of the columns. Text that a spreadsheet would compute begins
    with an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(results.run_row(BenchRun())), lineterminator="\n")
    writer.writeheader()
    for run in runs:
        writer.writerow({name: _cell(value) for name, value in results.run_row(run).items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return value
