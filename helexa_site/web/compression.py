"""Compresses pages, JSON and style sheets. Answers of models are none of Django's and stay plain.

Django's middleware adds random bytes of random length to each response, so that its compressed size
does not show a form's token to one who can have text reflected beside it (BREACH).
"""

from __future__ import annotations

from http import HTTPStatus

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

COMPRESSED_TYPES = (
    *("text/", "application/json", "application/javascript", "application/problem+json"),
    *("application/vnd.oai.openapi", "image/svg+xml"),
)
"""Fonts and images are compressed already."""


class CompressionMiddleware(GZipMiddleware):
    """Whole bodies alone: a range of a file counts bytes of the file."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        is_text = response.headers.get("Content-Type", "").startswith(COMPRESSED_TYPES)
        if not is_text or response.status_code == HTTPStatus.PARTIAL_CONTENT:
            return response
        return super().process_response(request, response)
