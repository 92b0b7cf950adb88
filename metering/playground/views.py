"""The playground's page, its user's identity, and their conversations."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC
from functools import wraps
from typing import Any

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from helexa_site.pages import render_page
from inference.gateway.request.identify import Login
from inference.wire.errors import ForbiddenError, ServiceUnavailableError
from metering.errors import DisabledAccountError
from metering.key_directory import DatabaseKeyStore
from metering.pages import Reader, for_members
from metering.playground.conversations import (
    MAX_CONVERSATION_BYTES,
    ConversationError,
    as_json,
    as_markdown,
    conversation_delete,
    conversation_find,
    conversation_save,
    conversations_list,
    ensure_size,
    invalid,
    parse_state,
)
from metering.playground.login import FOUND
from metering.playground.models import Conversation
from metering.principal import Scope


@never_cache
@require_GET
@for_members
def playground(request: HttpRequest, reader: Reader) -> HttpResponse:
    settings = {
        "accounts": reader.paying_accounts,
        "user": reader.username,
        "may_add_models": request.user.has_perm("fleet.add_cataloguemodel"),
        "base_url": request.build_absolute_uri("/").rstrip("/"),
    }
    context = {"settings": settings}
    return render_page(request, "playground/playground.html", title="Playground", context=context)


@never_cache
@for_members
@require_POST
def identify(request: HttpRequest, reader: Reader) -> HttpResponse:
    """Called by ``metering.playground.login`` alone, which reads the ``Login`` and no answer.
    ``?account=`` names the paying account."""
    found: list[Login] | None = getattr(request, "scope", {}).get(FOUND)
    if found is not None:
        found.append(_login(reader, request.GET.get("account", "")))
    return HttpResponse(status=204)


def _login(reader: Reader, account: str) -> Login:
    problem = f"You cannot ask from the budget of the account {account!r}."
    if account in reader.paying_accounts:
        try:
            principal = DatabaseKeyStore().account(account).asking(frozenset({Scope.INFERENCE}))
        except DisabledAccountError as error:
            problem = str(error)
        except DatabaseError:
            detail = "API keys cannot be looked up: the database does not answer."
            return Login(refusal=ServiceUnavailableError("database_unavailable", detail))
        else:
            return Login(principal=principal, username=reader.username)
    return Login(refusal=ForbiddenError("account_not_allowed", problem, param="account"))


FORMATS = {"json": "application/json", "md": "text/markdown; charset=utf-8"}
MAX_REVISION = 2**31 - 1
MAX_MARKDOWN_BYTES = 64 * 1024


def for_owners(view: Callable[..., HttpResponse]) -> Any:
    @never_cache
    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return _refused(401, "login_required", "You are not logged in any more: log in again.")
        try:
            return view(request, *args, **kwargs)
        except ConversationError as error:
            return _refused(error.status, error.code, str(error))

    return checked


@require_GET
@for_owners
def conversations(request: HttpRequest) -> HttpResponse:
    found = conversations_list(user_id=_user_id(request), words=request.GET.get("q", "").strip())
    return JsonResponse({"data": [_row(one) for one in found]})


@require_http_methods(["GET", "PUT", "DELETE"])
@for_owners
def conversation(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """PUT saves it: ``?revision=`` is the one that it continues, 0 for a new one."""
    which: dict[str, Any] = {"user_id": _user_id(request), "conversation_id": conversation_id}
    if request.method == "DELETE":
        conversation_delete(**which)
        return HttpResponse(status=204)
    if request.method == "GET":
        found = conversation_find(**which)
        return JsonResponse({**_row(found), "state": json.loads(found.state)})
    # Bypasses Django's limit, which is that of forms.
    body = request.read(MAX_CONVERSATION_BYTES + 1)
    ensure_size(len(body))
    saved = conversation_save(
        **which, revision=_revision(request.GET.get("revision", "")), state=parse_state(body)
    )
    return JsonResponse(_row(saved))


@require_GET
@for_owners
def export(request: HttpRequest, conversation_id: uuid.UUID) -> HttpResponse:
    format_ = request.GET.get("format", "")
    if format_ not in FORMATS:
        raise invalid(f"format: {format_!r} is neither json nor md.")
    found = conversation_find(user_id=_user_id(request), conversation_id=conversation_id)
    head: dict[str, Any] = {"title": found.title, "updated_at": found.updated_at.astimezone(UTC)}
    if format_ == "json":
        text = as_json(json.loads(found.state), **head)
    else:
        text = as_markdown(parse_state(found.state.encode()), **head)
    name = f"conversation-{found.updated_at:%Y-%m-%d}-{str(found.pk)[:8]}.{format_}"
    return HttpResponse(
        text,
        content_type=FORMATS[format_],
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@require_POST
@for_owners
def markdown(request: HttpRequest) -> HttpResponse:
    # Imported here: only who opens the playground needs its libraries in memory.
    from metering.playground.markdown import html_of

    body = request.read(MAX_MARKDOWN_BYTES + 1)
    if len(body) > MAX_MARKDOWN_BYTES:
        message = f"The text has more than {MAX_MARKDOWN_BYTES:,} bytes: it is shown as it is."
        return _refused(413, "too_large", message)
    return HttpResponse(html_of(body.decode(errors="replace")))


def _row(found: Conversation) -> dict[str, Any]:
    return {
        "id": str(found.pk),
        "title": found.title,
        "revision": found.revision,
        "num_bytes": found.num_bytes,
        "updated_unix_s": int(found.updated_at.timestamp()),
    }


def _revision(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= MAX_REVISION):
        raise invalid(f"revision: {word!r} is not a number from 0 on.")
    return int(word)


def _user_id(request: HttpRequest) -> int:
    pk = request.user.pk
    assert isinstance(pk, int), "they are logged in"
    return pk


def _refused(status: int, code: str, message: str) -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message}}, status=status)
