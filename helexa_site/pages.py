"""Pages outside the admin: for members as for operators, in the admin's looks."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def render_page(
    request: HttpRequest, template: str, *, title: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """``template`` extends ``pages/base.html``."""
    whole = {**admin.site.each_context(request), "title": title, **context}
    return render(request, template, whole, status=status)
