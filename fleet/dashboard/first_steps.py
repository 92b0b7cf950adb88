"""The dashboard's card for a new operator: first answer, hosts, people. Steps are derived from
existing rows."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from fleet.admin.unfold_types import actor_of
from fleet.management.clients import CLIENTS, Target, settings_text
from fleet.models import CatalogueModel, Invitation, Neuron, Replica
from fleet.services.invitations import DEFAULT_SHARE_PORT, sharing_state
from helexa_site.pages import SHOWN_ONCE, render_page
from metering import services
from metering.errors import MeteringValueError
from metering.ledger.entries import Outcome
from metering.models import Account, ApiKey, RequestRecord
from metering.principal import BUILT_IN_ACCOUNTS
from metering.selectors import without_playground_keys

FIRST_ACCOUNT = "team"
MAX_ACCOUNTS = 50
HIDDEN = "first_steps_hidden"
KEY_NAME = "first key"
MAKES_KEYS = "metering.add_apikey"
MAKES_ACCOUNTS = "metering.add_account"
NO_MODEL = "MODEL"

SHOWN_CLIENTS = {"claude": "Claude Code", "opencode": "opencode", "open-webui": "Open WebUI"}
QUESTION = "What is the capital of France?"
PYTHON = """from openai import OpenAI

client = OpenAI(base_url={url}, api_key={key})
answer = client.chat.completions.create(
    model={model}, messages=[{{"role": "user", "content": {question}}}]
)
print(answer.choices[0].message.content)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSteps:
    has_key: bool
    request_id: str
    """The newest answered request; empty: none."""
    request_at: datetime | None
    has_host: bool
    """A second host, or an invitation of one."""
    has_person: bool
    accounts: tuple[str, ...]
    """Empty: ``FIRST_ACCOUNT`` is made with the key."""

    @property
    def is_done(self) -> bool:
        return self.has_key and bool(self.request_id) and self.has_host and self.has_person


def first_steps() -> FirstSteps:
    answered = (
        RequestRecord.objects.filter(outcome=Outcome.ANSWERED)
        .order_by("-at")
        .values_list("request_id", "at")
        .first()
    )
    accounts = Account.objects.filter(enabled=True).exclude(name__in=BUILT_IN_ACCOUNTS)
    return FirstSteps(
        has_key=without_playground_keys(ApiKey.objects.filter(revoked_at=None)).exists(),
        request_id="" if answered is None else answered[0].hex,
        request_at=None if answered is None else answered[1],
        has_host=Invitation.objects.exists() or Neuron.objects.count() > 1,
        has_person=User.objects.count() > 1,
        accounts=tuple(accounts.values_list("name", flat=True)[:MAX_ACCOUNTS]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    name: str
    text: str


def snippets(target: Target) -> list[Snippet]:
    return [
        Snippet(name="curl", text=_curl(target)),
        Snippet(name="Python", text=_python(target)),
        *(
            Snippet(name=label, text=settings_text(client, CLIENTS[client](target)))
            for client, label in SHOWN_CLIENTS.items()
        ),
    ]


def _curl(target: Target) -> str:
    body = {"model": target.model, "messages": [{"role": "user", "content": QUESTION}]}
    lines = [
        f"curl {shlex.quote(f'{target.openai_url}/chat/completions')}",
        f"-H {shlex.quote(f'Authorization: Bearer {target.key}')}",
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}",
    ]
    return " \\\n  ".join(lines)


def _python(target: Target) -> str:
    return PYTHON.format(
        url=json.dumps(target.openai_url),
        key=json.dumps(target.key),
        model=json.dumps(target.model, ensure_ascii=False),
        question=json.dumps(QUESTION),
    )


def steps_context(request: HttpRequest) -> dict[str, Any]:
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


@never_cache
@require_GET
def card(request: HttpRequest) -> HttpResponse:
    return render(request, "fleet/first_steps.html", steps_context(request))


@require_POST
def make_key(request: HttpRequest) -> HttpResponse:
    """Answers with snippets that contain the key, which is not stored."""
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
        "key": made.row,
        "shown_once": made.key,
        "model": model,
        "snippets": snippets(Target(url=url, model=model or NO_MODEL, key=made.key)),
    }
    has_scripts = request.headers.get("hx-request") == "true"
    template = "fleet/first_key.html" if has_scripts else "fleet/first_key_page.html"
    return render_page(
        request, template, title="A new API key", context=context, headers=SHOWN_ONCE
    )


@require_POST
def hide(request: HttpRequest) -> HttpResponse:
    request.session[HIDDEN] = True
    if request.headers.get("hx-request") == "true":
        return HttpResponse()
    return HttpResponseRedirect(reverse("admin:index"))


def first_model() -> str:
    ready = Replica.objects.filter(status="ready", model__enabled=True)
    name = ready.order_by("model_name").values_list("model_name", flat=True).first()
    if name is None:
        enabled = CatalogueModel.objects.filter(enabled=True, task="text")
        name = enabled.order_by("name").values_list("name", flat=True).first()
    return name or ""
