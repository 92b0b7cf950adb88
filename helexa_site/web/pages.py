"""Pages outside the admin: for members as for operators, in the admin's looks."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from helexa_site.web.navigation import navigation_of
from inference.gateway.request.identify import allows_anonymous

OPEN_ACCESS = ("No API key needed", "warning")


def open_access_label(_request: HttpRequest) -> tuple[str, str] | None:
    """The label of every page's header, text and tone, while callers without a key are served."""
    return OPEN_ACCESS if allows_anonymous(settings.CONFIG) else None


def shell_of(request: HttpRequest) -> dict[str, Any]:
    """The context of ``pages/base.html``: navigation for those who are logged in."""
    has_login = request.user.is_authenticated
    return {
        **admin.site.each_context(request),
        "is_nav_sidebar_enabled": has_login,
        "sidebar_navigation": navigation_of(request) if has_login else [],
    }


def render_page(
    request: HttpRequest, template: str, *, title: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """``template`` extends ``pages/base.html``."""
    whole = {**shell_of(request), "title": title, **context}
    return render(request, template, whole, status=status)
