"""Who sees the bench's pages: staff, or everybody where the operator allows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.http import require_GET

from helexa_site.web.pages import render_page
from metering.bench.errors import BenchError

View = Callable[..., HttpResponseBase]
TABS = (
    ("bench-overview", "Overview"),
    ("bench-trends", "Trends"),
    ("bench-concurrency", "Concurrency"),
    ("bench-compare", "Compare"),
    ("bench-runs", "Runs"),
)
STARTING = ("bench-jobs", "Measure")
STARTS_JOBS = "bench.add_benchjob"


def may_start(request: HttpRequest) -> bool:
    """Whether the reader may start sweeps."""
    user = request.user
    return isinstance(user, User) and user.is_staff and user.has_perm(STARTS_JOBS)


def bench_page(view: View) -> View:
    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        user = request.user
        if not settings.CONFIG.has_public_bench:
            if not user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            if not (isinstance(user, User) and user.is_staff):
                raise PermissionDenied
        try:
            return view(request, *args, **kwargs)
        except BenchError as error:
            return shown(request, "bench/refused.html", "", {"reason": str(error)}, status=400)

    return require_GET(checked)


def shown(
    request: HttpRequest, template: str, tab: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    tabs = (*TABS, STARTING) if may_start(request) else TABS
    whole = {"tabs": tabs, "tab": tab, **context}
    return render_page(request, template, title="Bench", context=whole, status=status)
