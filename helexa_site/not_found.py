"""What is said of a path that Django does not know: JSON, unless a page was asked for.

An API client whose base URL is wrong gets an error that it can show, and the path that it may have
meant.
"""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from inference.gateway.paths import unknown_url
from inference.wire import openai_errors
from inference.wire.errors import UnknownUrlError


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if "text/html" in request.headers.get("accept", ""):
        return defaults.page_not_found(request, exception)
    error = UnknownUrlError(unknown_url(str(request.method), request.path))
    return HttpResponse(
        openai_errors.error_body(error, request_id=uuid.uuid4().hex),
        status=error.status,
        content_type="application/json",
    )
