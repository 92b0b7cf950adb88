"""``/admin/settings/``: every setting, with what this gateway has read from its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from helexa_site.web.pages import render_page
from inference.settings.setting import Setting
from inference.settings.table import SETTINGS

HIDDEN = "set, and not shown"
ENVIRONMENT: Mapping[str, str] = os.environ


@dataclass(frozen=True, slots=True)
class Row:
    setting: Setting[Any]
    value: str
    """Empty where it is not set."""


def rows_of(environment: Mapping[str, str]) -> list[Row]:
    return [
        Row(setting, _shown(setting, environment.get(setting.name, "").strip()))
        for setting in SETTINGS
        if not setting.is_internal
    ]


def _shown(setting: Setting[Any], word: str) -> str:
    return HIDDEN if word and setting.is_secret else word


@require_GET
def settings_page(request: HttpRequest) -> HttpResponse:
    """Shows the settings to superusers only: addresses and paths of the host are among the
    values."""
    if not request.user.is_superuser:
        raise PermissionDenied
    context = {"rows": rows_of(ENVIRONMENT)}
    return render_page(request, "pages/settings.html", title="Settings", context=context)
