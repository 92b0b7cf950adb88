"""Pages outside the admin, in its looks, and Django's answers to refused or failed requests. Those
are JSON unless a page was requested: an API client whose base URL is wrong gets an error that it
can show. A page needs the session, and so the database: where that is offline, it has no shell."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from helexa_site.navigation import navigation_of
from inference.gateway.request.identify import REFUSED, REQUEST_ID, NotedRefusal, allows_anonymous
from inference.redaction import Redactor
from inference.request_ids import new_request_id
from inference.settings.setting import Setting
from inference.settings.table import SETTINGS
from inference.wire.error_envelopes import openai_errors
from inference.wire.errors import (
    ApiError,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    UnknownUrlError,
)

logger = logging.getLogger(__name__)


def open_access_label(_request: HttpRequest) -> tuple[str, str] | None:
    """django-unfold's callback: text and tone."""
    return ("No API key needed", "warning") if allows_anonymous(settings.CONFIG) else None


SHOWN_ONCE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
"""The headers of a page with a secret that is stored nowhere."""


def shell_of(request: HttpRequest) -> dict[str, Any]:
    has_login = request.user.is_authenticated
    return {
        **admin.site.each_context(request),
        "is_nav_sidebar_enabled": has_login,
        "sidebar_navigation": navigation_of(request) if has_login else [],
    }


def render_page(
    request: HttpRequest,
    template: str,
    *,
    title: str,
    context: dict[str, Any],
    status: int = 200,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> HttpResponse:
    whole = {**shell_of(request), **context, "title": title}
    response = render(request, template, whole, status=status)
    for name, value in headers.items():
        response[name] = value
    return response


@never_cache
def front(request: HttpRequest) -> HttpResponse:
    if not request.user.is_authenticated:
        return redirect("login")
    return redirect("admin:index" if request.user.is_staff else "playground")


def favicon(_request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect(static("helexa/favicon.svg"))


ENVIRONMENT: Mapping[str, str] = os.environ


@dataclass(frozen=True, slots=True)
class Row:
    setting: Setting[Any]
    value: str


def rows_of(environment: Mapping[str, str]) -> list[Row]:
    rows, hidden_passwords = [], Redactor()
    for setting in SETTINGS:
        word = environment.get(setting.name, "").strip()
        if not setting.is_internal:
            shown = "set, and not shown" if word and setting.is_secret else hidden_passwords(word)
            rows.append(Row(setting, shown))
    return rows


@require_GET
def settings_page(request: HttpRequest) -> HttpResponse:
    """For superusers only: addresses and paths of the host are among the values."""
    if not request.user.is_superuser:
        raise PermissionDenied
    context = {"rows": rows_of(ENVIRONMENT)}
    return render_page(request, "pages/settings.html", title="Settings", context=context)


BAD_REQUEST = "This request cannot be read: go back, reload the page, and try again."
NOT_FOUND = "There is nothing at this address, or it is not yours to see."
FORBIDDEN = "This page is for people with other permissions. An operator gives them."
FAILED = "The server failed. Its log has the cause, under this number: {}."
WITHOUT_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><main><h1>{title}</h1><p>{reason}</p><p><a href="/">Back to the start</a></p></main></body>
</html>
"""


def page_bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    error = InvalidRequestError(BAD_REQUEST, param=None)
    return _answer(request, "Bad request", BAD_REQUEST, error)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    from inference.gateway.server.paths import unknown_url  # with the dialects, for this page alone

    error = UnknownUrlError(unknown_url(str(request.method), request.path))
    return _answer(request, "Not found", NOT_FOUND, error)


def page_forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    error = ForbiddenError("permission_denied", FORBIDDEN)
    return _answer(request, "Not allowed", FORBIDDEN, error)


def page_failed(request: HttpRequest) -> HttpResponse:
    """Django has logged the exception; this line has the number on the reader's page."""
    number = getattr(request, "scope", {}).setdefault(REQUEST_ID, new_request_id())
    logger.error("%s %s failed: %s", request.method, request.path, number)
    return _answer(request, "Server error", FAILED.format(number), InternalError())


def _answer(request: HttpRequest, title: str, reason: str, error: ApiError) -> HttpResponse:
    if "text/html" in request.headers.get("accept", ""):
        return _page(request, title, reason, status=error.status)
    scope: dict[str, Any] = getattr(request, "scope", {})  # of requests by ASGI
    scope[REFUSED] = NotedRefusal(code=error.code, message=error.message)
    request_id = scope.setdefault(REQUEST_ID, new_request_id())
    body = openai_errors.error_body(error, request_id=request_id)
    return HttpResponse(body, status=error.status, content_type="application/json")


def _page(request: HttpRequest, title: str, reason: str, *, status: int) -> HttpResponse:
    context = {"reason": reason}
    try:
        return render_page(
            request, "pages/refused.html", title=title, context=context, status=status
        )
    except DatabaseError:
        return HttpResponse(WITHOUT_SHELL.format(title=title, reason=reason), status=status)
