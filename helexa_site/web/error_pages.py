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
from inference.wire.error_envelopes import openai_errors
from inference.wire.errors import ApiError, InternalError, InvalidRequestError, UnknownUrlError

logger = logging.getLogger(__name__)

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
    error = UnknownUrlError(unknown_url(str(request.method), request.path))
    return _answer(request, "Not found", NOT_FOUND, error)


def page_forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(request, "Not allowed", FORBIDDEN, status=403)


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
