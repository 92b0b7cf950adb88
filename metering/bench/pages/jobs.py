"""The page on which sweeps are started, followed and cancelled: for who may add jobs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from fleet.models import CatalogueModel
from metering.actor import user_actor
from metering.bench.errors import BenchError, BenchValueError
from metering.bench.jobs.services import (
    MAX_JOB_SAMPLES,
    JobRequest,
    bench_job_cancel,
    bench_job_request,
    target_names,
)
from metering.bench.models import BenchJob
from metering.bench.pages.access import may_start, shown
from metering.bench.store import plan_find

MAX_JOBS_SHOWN = 20


def for_starters(view: Callable[..., HttpResponse]) -> Any:
    @never_cache
    @login_required
    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not may_start(request):
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return checked


@for_starters
@require_GET
def jobs(request: HttpRequest) -> HttpResponse:
    return _page(request, {})


@for_starters
@require_POST
def start(request: HttpRequest) -> HttpResponse:
    words = {name: request.POST.get(name, "").replace("\x00", "").strip() for name in FIELDS}
    try:
        bench_job_request(actor=_actor(request), requested=_requested(words))
    except BenchError as error:
        status = 400 if isinstance(error, BenchValueError) else 409
        return _page(request, {"problem": str(error), "words": words}, status=status)
    return HttpResponseRedirect(reverse("bench-jobs"))


@for_starters
@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """One that has ended meanwhile stays as it is, as the page shows."""
    get_object_or_404(BenchJob, pk=pk)
    bench_job_cancel(actor=_actor(request), job_id=pk)
    return HttpResponseRedirect(reverse("bench-jobs"))


@for_starters
@require_GET
def state(request: HttpRequest, pk: int) -> HttpResponse:
    """Asked for again while the job is open."""
    job = get_object_or_404(BenchJob, pk=pk)
    return render(request, "bench/job.html", {"job": job})


FIELDS = ("target", "model", "scenarios", "samples", "beside_load")


def _requested(words: dict[str, str]) -> JobRequest:
    """Raises ``BenchValueError``."""
    samples = words["samples"]
    if samples and not (samples.isascii() and samples.isdigit() and len(samples) < 6):
        raise BenchValueError("samples", f"samples is a number from 1 to {MAX_JOB_SAMPLES}")
    return JobRequest(
        target=words["target"],
        model=words["model"],
        scenarios=words["scenarios"].split(),
        samples=int(samples) if samples else None,
        is_beside_load=bool(words["beside_load"]),
    )


def _page(request: HttpRequest, context: dict[str, Any], status: int = 200) -> HttpResponse:
    plan = plan_find()
    models = CatalogueModel.objects.filter(enabled=True).order_by("name")
    found = {
        "targets": target_names(),
        "models": list(models.values_list("name", flat=True)),
        "plan": plan,
        "max_samples": MAX_JOB_SAMPLES,
        "open_job": BenchJob.objects.filter(open_slot=1).first(),
        "jobs": BenchJob.objects.filter(open_slot=None)[:MAX_JOBS_SHOWN],
        **context,
    }
    return shown(request, "bench/jobs.html", "bench-jobs", found, status=status)


def _actor(request: HttpRequest) -> Any:
    return user_actor(request.user.get_username())
