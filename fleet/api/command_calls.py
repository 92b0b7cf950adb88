"""Commands run the API's operations in their own process: no HTTP, no authentication.

    models load qwen ─▶ answer_of("POST", "catalogue/qwen/load", {}) ─▶ ModelJobsView.answer

The table of operations is that of the URLs: a command needs the paths anyway, for a server
(``--url``).
"""

from __future__ import annotations

import json
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.http import QueryDict
from django.urls import resolve
from rest_framework.renderers import JSONRenderer

from fleet.api.access import COMMAND_CALLER
from metering.api.authentication import Caller

API_URLS = "helexa_site.api_urls"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCall:
    """A ``Call`` that only code of this process can make."""

    method: str
    query_params: QueryDict
    data: dict[str, Any]
    user: AnonymousUser = field(default_factory=AnonymousUser)
    auth: Caller = COMMAND_CALLER


def answer_of(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
    """The status and the JSON that a server answers at ``/api/{path}``, refusals included. Raises
    ``django.db.Error``."""
    quoted, _, query = path.partition("?")
    found: Any = resolve(f"/api/{urllib.parse.unquote(quoted)}", API_URLS)
    call = CommandCall(
        method=method,
        query_params=QueryDict(query),
        data=json.loads(json.dumps(body or {})),  # lists and text, as a server reads them
    )
    view, actions = found.func.cls(**found.func.initkwargs), getattr(found.func, "actions", {})
    answer = view.answer(call, actions, **found.kwargs)
    return answer.status_code, b"" if answer.data is None else JSONRenderer().render(answer.data)
