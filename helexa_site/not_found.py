"""The answer for a path that Django does not know, or a page that the user may not see: a page
where one was asked for, else JSON.

An API client whose base URL is wrong gets an error that it can show, and the path that it may have
meant.
"""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponse

from helexa_site.pages import render_page
from inference.gateway.server.paths import unknown_url
from inference.wire.errors import UnknownUrlError
from inference.wire.openai import errors as openai_errors


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if "text/html" in request.headers.get("accept", ""):
        context = {"reason": "There is nothing at this address, or it is not yours to see."}
        return render_page(
            request, "pages/refused.html", title="Not found", context=context, status=404
        )
    error = UnknownUrlError(unknown_url(str(request.method), request.path))
    return HttpResponse(
        openai_errors.error_body(error, request_id=uuid.uuid4().hex),
        status=error.status,
        content_type="application/json",
    )


def page_forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    context = {"reason": "This page is for people with other permissions. An operator gives them."}
    return render_page(
        request, "pages/refused.html", title="Not allowed", context=context, status=403
    )
