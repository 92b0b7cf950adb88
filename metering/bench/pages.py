"""The pages under ``/bench/``. Staff see them, or everybody where the operator allows it; starting
sweeps needs the permission to add jobs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required, user_passes_test
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils.text import capfirst
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from fleet.models import CatalogueModel
from helexa_site.pages import render_page
from helexa_site.templatetags.filters import moment_text
from metering.audit import user_actor
from metering.bench import results, tables
from metering.bench.measures import MIN_CHANGE, MIN_SAMPLES, Difference, Verdict, number_text
from metering.bench.models import BenchJob, BenchRun
from metering.bench.services import bench_job_cancel, bench_job_request, plan_find, target_names
from metering.errors import BenchError, BenchValueError
from metering.output import csv_response, csv_text

View = Callable[..., HttpResponseBase]
TABS = (("bench-results", "Results"), ("bench-runs", "Runs"))
MEASURE_TAB = ("bench-jobs", "Measure")
MAX_SHOWN = 200
MAX_CSV = 50_000
MAX_JOBS_SHOWN = 20
SHOWN_APART = ("id", "artifact", "error", "detail", "settings")
SPEEDS = ("ttft_s", "prefill_tps", "decode_tps", "total_s")
JOB_FIELDS = ("target", "model", "scenarios", "samples", "beside_load")


def bench_page(view: View) -> View:
    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not settings.CONFIG.has_public_bench:
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            if not request.user.is_staff:
                raise PermissionDenied
        try:
            return view(request, *args, **kwargs)
        except BenchError as error:
            return _shown(request, "bench/refused.html", "", {"reason": str(error)}, status=400)

    return require_GET(checked)


def for_starters(view: View) -> View:
    return never_cache(login_required(user_passes_test(_ensure_may_start)(view)))


def _ensure_may_start(user: User | AnonymousUser) -> bool:
    if not _may_start(user):
        raise PermissionDenied
    return True


def _may_start(user: User | AnonymousUser) -> bool:
    return user.is_staff and user.has_perm("bench.add_benchjob")


def _shown(
    request: HttpRequest, template: str, tab: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    tabs = (*TABS, MEASURE_TAB) if _may_start(request.user) else TABS
    whole = {"tabs": tabs, "tab": tab, **context}
    return render_page(request, template, title="Bench", context=whole, status=status)


@bench_page
def results_page(request: HttpRequest) -> HttpResponse:
    builds = list(map(str, results.builds_list().values()))
    choices = [
        _choice(request, "model", "Model", _values("model_id")),
        _choice(request, "scenario", "Scenario", _scenarios()),
        _choice(request, "before", "Before", builds, "the build before"),
        _choice(request, "after", "After", builds, "the latest build"),
    ]
    model, scenario, before, after = (choice["chosen"] for choice in choices)
    words = {"model": model, "scenario": scenario}
    context: dict[str, Any] = {"choices": choices, "min_change": MIN_CHANGE}
    if before and after:
        *_, comparison = results.compared(before, after, words)
        differences = [one for cell in comparison.cells.values() for one in cell]
        context |= {"before": before, "after": after, "comparison": comparison}
    else:
        cells = results.cells_list(**results.cell_filters(words))
        standings = tables.standings_of(cells)
        every = [one["previous"] for group in standings.values() for one in group]
        differences = [one for one in every if one]
        measured = [cell for cell in cells if cell.scenario.startswith("concurrency:")]
        concurrency = tables.view_rows("concurrency", results.latest_builds(measured))
        context |= {
            "standings": standings,
            "knee_chart": tables.concurrency_chart(concurrency),
            "concurrency": [
                {**row, "points": list(map(tables.texts_of, row["points"]))} for row in concurrency
            ],
            "knee_latency": number_text(tables.KNEE_LATENCY),
        }
        if model and scenario:
            most = Counter(cell.target for cell in cells).most_common(1)
            target = request.GET.get("target") or (most[0][0] if most else "")
            context["charts"] = tables.trend_charts(cells, target)
            context["builds"] = list(map(tables.texts_of, tables.view_rows("series", cells)))
    context |= _outlook(differences)
    return _shown(request, "bench/results.html", "bench-results", context)


def _outlook(differences: list[Difference]) -> dict[str, Any]:
    too_few = [one for one in differences if one.verdict is Verdict.TOO_FEW]
    sides = [side for one in too_few for side in (one.before, one.after)]
    return {
        "verdicts": Counter(one.verdict.name for one in differences),
        "num_differences": len(differences),
        "num_judged": len(differences) - len(too_few),
        "num_samples": min((side.num_samples for side in sides), default=0),
        "samples_needed": MIN_SAMPLES,
    }


@bench_page
def runs(request: HttpRequest) -> HttpResponse:
    found = _runs_chosen(request)
    lists = BenchRun.objects.order_by().values_list("gpus", flat=True).distinct()
    context = {
        "choices": [
            _choice(request, "target", "Target", _values("target_name")),
            _choice(request, "gpu", "GPU", sorted({gpu for gpus in lists for gpu in gpus})),
            _choice(request, "model", "Model", _values("model_id")),
            _choice(request, "scenario", "Scenario", _scenarios()),
            _choice(request, "sha", "Build", _values("build")),
            _choice(request, "ok", "Outcome", ["true", "false"]),
        ],
        "runs": [(run, _speeds(run)) for run in found[:MAX_SHOWN]],
        "num_runs": found.count(),
        "max_shown": MAX_SHOWN,
        "query": request.GET.urlencode(),
    }
    return _shown(request, "bench/runs.html", "bench-runs", context)


def _speeds(run: BenchRun) -> dict[str, str]:
    return tables.texts_of({name: getattr(run, name) for name in SPEEDS})


@bench_page
def runs_as_csv(request: HttpRequest) -> HttpResponse:
    rows = (results.run_row(run).values() for run in _runs_chosen(request)[:MAX_CSV])
    return csv_response("bench-runs", csv_text(list(results.run_row(BenchRun())), rows))


@bench_page
def run(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(BenchRun, pk=pk)
    fields = {
        capfirst(column.verbose_name): _words(column.value_from_object(found))
        for column in BenchRun._meta.concrete_fields
        if column.name not in SHOWN_APART
    }
    context = {
        "trail": [("bench-runs", "Runs")],
        "run": found,
        "fields": {label: words for label, words in fields.items() if words},
        "detail": json.dumps(found.detail, indent=2) if found.detail else "",
        "settings_text": json.dumps(found.settings, indent=2) if found.settings else "",
    }
    return _shown(request, "bench/run.html", "bench-runs", context)


def _words(value: Any) -> str:
    if isinstance(value, datetime):
        return moment_text(value)
    if isinstance(value, list):
        return ", ".join(one if isinstance(one, str) else json.dumps(one) for one in value)
    return "" if value is None else str(value)


def _choice(
    request: HttpRequest, name: str, label: str, values: list[str], any_label: str = "all"
) -> dict[str, Any]:
    word = request.GET.get(name, "")
    chosen = word if word in values else ""
    own = {"name": name, "label": label, "any_label": any_label}
    return {**own, "values": values, "chosen": chosen}


def _runs_chosen(request: HttpRequest) -> Any:
    return results.runs_filtered(
        {name: request.GET.get(name, "").replace("\x00", "") for name in results.RUN_FILTERS}
    )


def _values(column: str) -> list[str]:
    return list(BenchRun.objects.order_by(column).values_list(column, flat=True).distinct())


def _scenarios() -> list[str]:
    return sorted(_values("scenario_id"), key=results.scenario_key)


@for_starters
@require_GET
def jobs(request: HttpRequest) -> HttpResponse:
    return _jobs_page(request, {})


@for_starters
@require_POST
def start(request: HttpRequest) -> HttpResponse:
    words = {name: request.POST.get(name, "").replace("\x00", "").strip() for name in JOB_FIELDS}
    try:
        bench_job_request(actor=user_actor(request.user.get_username()), job=_requested(words))
    except BenchError as error:
        status = 400 if isinstance(error, BenchValueError) else 409
        return _jobs_page(request, {"problem": str(error), "words": words}, status=status)
    return redirect("bench-jobs")


@for_starters
@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    get_object_or_404(BenchJob, pk=pk)
    bench_job_cancel(actor=user_actor(request.user.get_username()), job_id=pk)
    return redirect("bench-jobs")


@for_starters
@require_GET
def state(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "bench/job.html", {"job": get_object_or_404(BenchJob, pk=pk)})


def _requested(words: dict[str, str]) -> BenchJob:
    samples = words["samples"]
    is_number = samples.isascii() and samples.isdigit() and len(samples) < 6
    return BenchJob(
        target=words["target"],
        model=words["model"],
        scenarios=words["scenarios"].split(),
        samples=(int(samples) if is_number else 0) if samples else None,
        is_beside_load=bool(words["beside_load"]),
    )


def _jobs_page(request: HttpRequest, context: dict[str, Any], status: int = 200) -> HttpResponse:
    models = CatalogueModel.objects.filter(enabled=True).order_by("name")
    found = {
        "targets": target_names(),
        "models": list(models.values_list("name", flat=True)),
        "plan": plan_find(),
        "open_job": BenchJob.objects.filter(open_slot=1).first(),
        "jobs": BenchJob.objects.filter(open_slot=None)[:MAX_JOBS_SHOWN],
        **context,
    }
    return _shown(request, "bench/jobs.html", "bench-jobs", found, status=status)


urlpatterns = [
    path("", results_page, name="bench-results"),
    path("runs/", runs, name="bench-runs"),
    path("runs.csv", runs_as_csv, name="bench-runs-csv"),
    path("runs/<int:pk>/", run, name="bench-run"),
    path("jobs/", jobs, name="bench-jobs"),
    path("jobs/start", start, name="bench-start"),
    path("jobs/<int:pk>", state, name="bench-job"),
    path("jobs/<int:pk>/cancel", cancel, name="bench-cancel"),
]
