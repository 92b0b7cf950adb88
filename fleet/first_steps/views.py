"""The card, its refresh, and its two buttons: make a key, and hide the card."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_GET, require_POST

from fleet.admin.loading import actor_of
from fleet.first_steps.progress import FIRST_ACCOUNT, first_steps
from fleet.first_steps.snippets import snippets
from fleet.management.connect.clients import Target
from fleet.models import CatalogueModel, Replica
from fleet.services.hosts.sharing import DEFAULT_SHARE_PORT, sharing_state
from metering import services
from metering.errors import MeteringValueError
from metering.models import Account

HIDDEN = "first_steps_hidden"
"""The session's flag of a reader who wants the card no more."""
KEY_NAME = "first key"
MAKES_KEYS = "metering.add_apikey"
MAKES_ACCOUNTS = "metering.add_account"
NO_MODEL = "MODEL"
"""Stands in snippets where the catalogue is empty."""


def steps_context(request: HttpRequest) -> dict[str, Any]:
    """The context of ``fleet/first_steps.html``; empty where the card is not to be shown."""
    if request.session.get(HIDDEN):
        return {}
    steps = first_steps()
    if steps.is_done:
        return {}
    return {
        "steps": steps,
        "first_account": FIRST_ACCOUNT,
        "sharing": sharing_state(),
        "share_port": DEFAULT_SHARE_PORT,
    }


@require_GET
def card(request: HttpRequest) -> HttpResponse:
    """Asked for again while a step is open."""
    response = render(request, "fleet/first_steps.html", steps_context(request))
    add_never_cache_headers(response)
    return response


@require_POST
def make_key(request: HttpRequest) -> HttpResponse:
    """Answers with the key, which nothing keeps, in ready snippets."""
    name = request.POST.get("account") or FIRST_ACCOUNT
    account = Account.objects.filter(name=name).first()
    needed = [MAKES_KEYS] if account is not None else [MAKES_KEYS, MAKES_ACCOUNTS]
    if not request.user.has_perms(needed):
        raise PermissionDenied
    actor = actor_of(request)
    try:
        with transaction.atomic():
            if account is None:
                account = services.account_create(actor=actor, name=name)
            made = services.key_create(actor=actor, account=account, name=KEY_NAME)
    except MeteringValueError as error:
        context = {**steps_context(request), "problem": str(error)}
        return render(request, "fleet/first_steps.html", context)
    url = request.build_absolute_uri("/").rstrip("/")
    model = first_model()
    context = {
        "title": "A new API key",
        "key": made.row,
        "shown_once": made.key,
        "model": model,
        "snippets": snippets(Target(url=url, model=model or NO_MODEL, key=made.key)),
    }
    has_scripts = request.headers.get("hx-request") == "true"
    template = "fleet/first_key.html" if has_scripts else "fleet/first_key_page.html"
    response = render(request, template, admin.site.each_context(request) | context)
    response["Cache-Control"] = "no-store"
    response["Referrer-Policy"] = "no-referrer"
    return response


@require_POST
def hide(request: HttpRequest) -> HttpResponse:
    request.session[HIDDEN] = True
    if request.headers.get("hx-request") == "true":
        return HttpResponse()
    return HttpResponseRedirect(reverse("admin:index"))


def first_model() -> str:
    """One that is ready, else any of the catalogue; empty: there is none."""
    ready = Replica.objects.filter(status="ready", model__enabled=True)
    name = ready.order_by("model_name").values_list("model_name", flat=True).first()
    if name is None:
        enabled = CatalogueModel.objects.filter(enabled=True, task="text")
        name = enabled.order_by("name").values_list("name", flat=True).first()
    return name or ""
