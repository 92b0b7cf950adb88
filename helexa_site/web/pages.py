"""Pages outside the admin, in the admin's looks: the settings, and the shared shell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from helexa_site.web.navigation import navigation_of
from inference.gateway.request.identify import allows_anonymous
from inference.redaction import Redactor
from inference.settings.setting import Setting
from inference.settings.table import SETTINGS


def open_access_label(_request: HttpRequest) -> tuple[str, str] | None:
    """The label of every page's header, text and tone, while callers without a key are served."""
    return ("No API key needed", "warning") if allows_anonymous(settings.CONFIG) else None


SHOWN_ONCE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
"""The headers of a page with a secret that is stored nowhere."""


def shell_of(request: HttpRequest) -> dict[str, Any]:
    """The context of ``pages/base.html``: navigation for those who are logged in."""
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
    """Redirects operators to the dashboard, members to the playground, strangers to the log-in."""
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
    """Empty where it is not set."""


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
    """Shows the settings to superusers only: addresses and paths of the host are among the
    values."""
    if not request.user.is_superuser:
        raise PermissionDenied
    context = {"rows": rows_of(ENVIRONMENT)}
    return render_page(request, "pages/settings.html", title="Settings", context=context)
