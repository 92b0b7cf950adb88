"""The board as a page, as the part of it that htmx asks for again, and its buttons."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import AbstractUser
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_GET, require_POST

from fleet.admin.loading import Outcome, show_outcome
from fleet.dashboard.actions import act
from fleet.dashboard.board import board_of, outdated_rows
from fleet.errors import FleetError
from fleet.live.engine_logs import engine_log
from fleet.models import Replica
from fleet.overview import fleet_overview, outdated_models


def dashboard_context(_request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the admin's index shows. unfold calls it."""
    return context | {"title": "Dashboard", "board": board_of(fleet_overview())}


@require_GET
def board(request: HttpRequest) -> HttpResponse:
    return _board(request)


@require_GET
def outdated(request: HttpRequest) -> HttpResponse:
    """Replicas with earlier settings, and reloads under way."""
    return _outdated(request)


@require_GET
def log(request: HttpRequest, pk: int) -> HttpResponse:
    """The last lines of a replica's engine, asked of its neuron."""
    replica = get_object_or_404(Replica.objects.select_related("neuron"), pk=pk)
    lines, problem = "", ""
    try:
        lines = "\n".join(engine_log(replica.neuron.name, replica.model_name).lines)
    except FleetError as error:
        problem = str(error)
    context = {"replica": replica, "lines": lines, "problem": problem}
    response = render(request, "fleet/engine_log.html", context)
    add_never_cache_headers(response)
    return response


@require_POST
def do(request: HttpRequest) -> HttpResponse:
    """A button of the board. Without scripts the answer is the page again."""
    outcomes = act(cast(AbstractUser, request.user), request.POST.get("do", ""))
    if request.headers.get("hx-request") != "true":
        for outcome in outcomes:
            show_outcome(request, outcome)
        return HttpResponseRedirect(reverse("admin:index"))
    if request.headers.get("hx-target") == "outdated":
        return _outdated(request, outcomes)
    return _board(request, outcomes)


def _board(request: HttpRequest, outcomes: list[Outcome] | None = None) -> HttpResponse:
    context = {"board": board_of(fleet_overview()), "outcomes": outcomes or []}
    return _part(request, "fleet/board.html", context)


def _outdated(request: HttpRequest, outcomes: list[Outcome] | None = None) -> HttpResponse:
    context = {"models": outdated_rows(outdated_models()), "outcomes": outcomes or []}
    return _part(request, "fleet/outdated.html", context)


def _part(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    response = render(request, template, context)
    add_never_cache_headers(response)
    return response
