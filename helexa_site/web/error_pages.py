"""Django's answers to refused or failed requests: a page in the site's shell for requests of pages,
else JSON.

An API client whose base URL is wrong gets an error that it can show, with a suggested path. A page
needs the session, and so the database: where that is offline, the page has no shell.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse

from helexa_site.web.pages import render_page
from inference.gateway.request.identify import REFUSED, REQUEST_ID, NotedRefusal
from inference.gateway.server.paths import unknown_url
from inference.request_ids import new_request_id
from inference.wire.errors import ApiError, InternalError, InvalidRequestError, UnknownUrlError
from inference.wire.openai import errors as openai_errors

logger = logging.getLogger(__name__)

BAD_REQUEST = "This request cannot be read: go back, reload the page, and try again."
FAILED = "The server failed. Its log has the cause, under this number: {}."
WITHOUT_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><main><h1>{title}</h1><p>{reason}</p><p><a href="/">Back to the start</a></p></main></body>
</html>
"""


def page_bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _wants_page(request):
        return _page(request, "Bad request", BAD_REQUEST, status=400)
    return _json(request, InvalidRequestError(BAD_REQUEST, param=None))


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _wants_page(request):
        reason = "There is nothing at this address, or it is not yours to see."
        return _page(request, "Not found", reason, status=404)
    return _json(request, UnknownUrlError(unknown_url(str(request.method), request.path)))


def page_forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    reason = "This page is for people with other permissions. An operator gives them."
    return _page(request, "Not allowed", reason, status=403)


def page_failed(request: HttpRequest) -> HttpResponse:
    """Django has logged the exception; this line has the number on the reader's page."""
    number = _scope(request).setdefault(REQUEST_ID, new_request_id())
    logger.error("%s %s failed: %s", request.method, request.path, number)
    if _wants_page(request):
        return _page(request, "Server error", FAILED.format(number), status=500)
    return _json(request, InternalError())


def _wants_page(request: HttpRequest) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _page(request: HttpRequest, title: str, reason: str, *, status: int) -> HttpResponse:
    context = {"reason": reason}
    try:
        return render_page(
            request, "pages/refused.html", title=title, context=context, status=status
        )
    except DatabaseError:
        return HttpResponse(WITHOUT_SHELL.format(title=title, reason=reason), status=status)


def _json(request: HttpRequest, error: ApiError) -> HttpResponse:
    scope = _scope(request)
    scope[REFUSED] = NotedRefusal(code=error.code, message=error.message)
    request_id = scope.setdefault(REQUEST_ID, new_request_id())
    body = openai_errors.error_body(error, request_id=request_id)
    return HttpResponse(body, status=error.status, content_type="application/json")


def _scope(request: HttpRequest) -> dict[str, Any]:
    scope: dict[str, Any] = getattr(request, "scope", {})
    return scope
