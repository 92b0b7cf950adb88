"""Actions that end what works ask first, on a page that names what they are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

SURE = "sure"
"""The field of the second POST."""

Action = Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]


def asking_first(action: Action) -> Action:
    """An action of an admin's list that runs once the reader has confirmed it."""

    @wraps(action)
    def asking(page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        if SURE in request.POST:
            return action(page, request, queryset)
        name = request.POST.get("action", "")
        _, _, description = page.get_actions(request)[name]
        context = page.admin_site.each_context(request) | {
            "title": "Are you sure?",
            "opts": page.model._meta,
            "action": name,
            "description": description,
            "objects": queryset,
        }
        return TemplateResponse(request, "fleet/ask_first.html", context)

    return asking
