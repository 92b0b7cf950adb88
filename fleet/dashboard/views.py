"""The board as a page, as the part that htmx refreshes, and its buttons. A button's value is a verb
and its object:

    load model tiny      unload replica 17      drain neuron beast      cancel job 8f3c…
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import AbstractUser
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from fleet import services
from fleet.admin.hosts import on_host
from fleet.admin.job import WORDS, cancel, load, on_model, on_replica
from fleet.admin.unfold_types import Outcome, actor_of, show_outcome
from fleet.catalogue import SettingValue
from fleet.catalogue.targets import UPSTREAM_PREFIX
from fleet.dashboard.board import BoardQuery, board_of, model_context, neuron_context, outdated_rows
from fleet.dashboard.first_steps import steps_context
from fleet.dashboard.rows import job_progress
from fleet.errors import FleetError, InvitationError
from fleet.models import CatalogueModel, LoadJob, Neuron, Replica, Upstream
from fleet.neuron_client import engine_log
from fleet.overview import fleet_overview, job_lines_by_id
from fleet.overview_lines import JobLine
from fleet.services.invitations import DEFAULT_SHARE_PORT, redis_share, redis_unshare, sharing_state
from helexa_site.pages import render_page
from metering.audit import Actor, user_actor

MAX_FOLLOWED_JOBS = 20
OPERATE = "fleet.change_cataloguemodel"
CHANGE_NEURON = "fleet.change_neuron"
SHARES = "fleet.change_fleetpolicy"
LEVELS = {"succeeded": messages.SUCCESS, "failed": messages.ERROR, "cancelled": messages.WARNING}
GONE = Outcome(messages.WARNING, "That is not there any more")
CHANGE_SETTINGS = frozenset({"pin", "unpin"})


def dashboard_context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """unfold calls it for the admin's index."""
    board = board_of(fleet_overview(), BoardQuery.of(request.GET))
    return context | {"title": "Dashboard", "board": board} | steps_context(request)


@require_GET
def board(request: HttpRequest) -> HttpResponse:
    """``job``: the jobs whose notices the page shows, for a refresh."""
    jobs = job_lines_by_id(request.GET.getlist("job")[:MAX_FOLLOWED_JOBS])
    context = {"job_outcomes": list(map(_job_outcome, jobs))}
    return _board(request, BoardQuery.of(request.GET), context)


@require_GET
def model(request: HttpRequest) -> HttpResponse:
    name = request.GET.get("name", "")
    found = CatalogueModel.objects.filter(Q(name=name) | Q(aliases__name=name)).first()
    return _to_page(found, "replica" if found is None else "cataloguemodel", name)


@require_GET
def neuron(request: HttpRequest) -> HttpResponse:
    """``name``: as in records, where ``upstream:NAME`` is an upstream."""
    name = request.GET.get("name", "")
    if name.startswith(UPSTREAM_PREFIX):
        name = name.removeprefix(UPSTREAM_PREFIX)
        return _to_page(Upstream.objects.filter(name=name).first(), "upstream", name)
    return _to_page(Neuron.objects.filter(name=name).first(), "neuron", name)


def _to_page(found: Model | None, noun: str, name: str) -> HttpResponse:
    if found is not None:
        return HttpResponseRedirect(reverse(f"admin:fleet_{noun}_change", args=[found.pk]))
    rows = reverse(f"admin:fleet_{noun}_changelist")
    return HttpResponseRedirect(f"{rows}?{urlencode({'q': name})}")


def model_part(request: HttpRequest, outcomes: Sequence[Outcome] = ()) -> HttpResponse:
    model = get_object_or_404(CatalogueModel, name=_home(request))
    return _part(request, "fleet/model_home.html", model_context(model), outcomes)


def neuron_part(request: HttpRequest, outcomes: Sequence[Outcome] = ()) -> HttpResponse:
    neuron = get_object_or_404(Neuron, name=_home(request))
    return _part(request, "fleet/neuron_home.html", neuron_context(neuron), outcomes)


def outdated(request: HttpRequest, outcomes: Sequence[Outcome] = ()) -> HttpResponse:
    context = {"models": outdated_rows(fleet_overview())}
    return _part(request, "fleet/outdated.html", context, outcomes)


PARTS = {"outdated": outdated, "model-home": model_part, "neuron-home": neuron_part}
"""They are named by the ids of the elements that htmx replaces."""


def _home(request: HttpRequest) -> str:
    return request.POST.get("home") or request.GET.get("name", "")


@never_cache
@require_GET
def log(request: HttpRequest, neuron: str, model: str) -> HttpResponse:
    """The replica is found by name, since a reload makes a new row."""
    lines, problem = "", ""
    try:
        lines = "\n".join(engine_log(neuron, model).lines)
    except FleetError as error:
        problem = str(error)
    context = {"neuron": neuron, "model": model, "lines": lines, "problem": problem}
    return render(request, "fleet/engine_log.html", context)


@require_POST
def do(request: HttpRequest) -> HttpResponse:
    command = request.POST.get("do", "")
    outcomes = act(cast(AbstractUser, request.user), command)
    if command.partition(" ")[0] in CHANGE_SETTINGS:
        for outcome in outcomes:
            show_outcome(request, outcome)
        # The whole page is loaded again: its form of settings would undo the change when saved.
        return HttpResponse(headers={"HX-Refresh": "true"})
    if part := PARTS.get(request.headers.get("hx-target", "")):
        return part(request, outcomes)
    context = {
        "has_notices": True,
        "outcomes": [one for one in outcomes if not one.job_id],
        "job_outcomes": [one for one in outcomes if one.job_id],
    }
    return _board(request, BoardQuery.of(request.POST), context)


def _board(request: HttpRequest, query: BoardQuery, context: dict[str, Any]) -> HttpResponse:
    board = board_of(fleet_overview(), query)
    response = _part(request, "fleet/board.html", context | {"board": board})
    address = reverse("admin:index") + query.address().removesuffix("?")
    if not request.headers.get("hx-current-url", "").endswith(address):
        response["HX-Replace-Url"] = address
    return response


def _part(
    request: HttpRequest, template: str, context: dict[str, Any], outcomes: Sequence[Outcome] = ()
) -> HttpResponse:
    response = render(request, template, {"outcomes": outcomes} | context)
    add_never_cache_headers(response)
    return response


@never_cache
@require_http_methods(["GET", "POST"])
def sharing(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm(SHARES):
        raise PermissionDenied
    problem = ""
    if request.method == "POST":
        try:
            _set_sharing(request)
            return HttpResponseRedirect(reverse("sharing"))
        except InvitationError as error:
            problem = str(error)
    context = {
        "sharing": sharing_state(),
        "share_port": request.POST.get("port") or DEFAULT_SHARE_PORT,
        "problem": problem,
    }
    return render_page(
        request,
        "fleet/sharing.html",
        title="Sharing",
        context=context,
        status=400 if problem else 200,
    )


def _set_sharing(request: HttpRequest) -> None:
    if request.POST.get("do") == "close":
        redis_unshare(actor=actor_of(request))
        return
    port = request.POST.get("port", "")
    if not (port.isascii() and port.isdigit() and len(port) < 6):
        raise InvitationError(f"{port!r} is not a port")
    redis_share(actor=actor_of(request), host=request.POST.get("host", ""), port=int(port))


def act(user: AbstractUser, command: str) -> list[Outcome]:
    """Runs a command. Raises ``PermissionDenied``; an unknown command changes nothing."""
    verb, _, about = command.partition(" ")
    noun, _, name = about.partition(" ")
    found = COMMANDS.get((verb, noun))
    if found is None:
        return [Outcome(messages.ERROR, "There is no such action")]
    permission, action = found
    if not user.has_perm(permission):
        raise PermissionDenied
    return action(user_actor(user.get_username()), name)


def _job_outcome(job: JobLine) -> Outcome:
    words = job_progress(job, with_neuron=True, with_failure=False).text
    job_id = job.id if job.is_active else ""
    return Outcome(LEVELS.get(job.status, messages.INFO), f"{job.model}: {words}", job_id)


def _load_model(actor: Actor, name: str) -> list[Outcome]:
    models = CatalogueModel.objects.filter(name=name)
    return [load(actor, model) for model in models] or [GONE]


def _change_model(
    settings: Mapping[str, SettingValue], came_of_it: str, actor: Actor, name: str
) -> list[Outcome]:
    model = CatalogueModel.objects.filter(name=name).first()
    if model is None:
        return [GONE]
    model.assign(settings)
    services.catalogue_model_update(actor=actor, model=model, changed_fields=list(settings))
    return [Outcome(messages.SUCCESS, f"{name} {came_of_it}")]


def _on_replica(verb: str, actor: Actor, pk: str) -> list[Outcome]:
    if not (pk.isascii() and pk.isdigit() and len(pk) < 19):
        return [GONE]
    replicas = Replica.objects.select_related("neuron").filter(pk=int(pk))
    return [on_replica(verb, actor, one) for one in replicas] or [GONE]


def _cancel_job(actor: Actor, pk: str) -> list[Outcome]:
    try:
        jobs = list(LoadJob.objects.select_related("neuron").filter(pk=pk))
    except (ValidationError, ValueError):
        return [GONE]
    return [cancel(actor, job) for job in jobs] or [GONE]


Action = Callable[[Actor, str], list[Outcome]]
COMMANDS: dict[tuple[str, str], tuple[str, Action]] = {
    ("load", "model"): (OPERATE, _load_model),
    **{
        (verb, "model"): (OPERATE, partial(on_model, verb))
        for verb in ("unload", "reload", "sleep")
    },
    **{(verb, "replica"): (OPERATE, partial(_on_replica, verb)) for verb in WORDS},
    ("pin", "model"): (OPERATE, partial(_change_model, {"pinned": True}, "is kept loaded")),
    ("unpin", "model"): (
        OPERATE,
        partial(_change_model, {"pinned": False}, "is loaded when it is requested"),
    ),
    ("cancel", "job"): (OPERATE, _cancel_job),
    **{
        (verb, "neuron"): (CHANGE_NEURON, partial(on_host, verb))
        for verb in ("drain", "resume", "admit")
    },
}
