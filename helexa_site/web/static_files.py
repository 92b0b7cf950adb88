"""Addresses of static files that change with their contents, and their caching.

{% static "helexa/pages.css" %} ─▶ /static/helexa/pages.css?v=DIGEST ─▶ kept for a year
without the digest, as one script imports another                    ─▶ asked for again
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware

DIGEST_CHARS = 12
VERSION = "v"
"""The query's field."""
KEPT_LONG = "max-age=31536000, public, immutable"


class HashedUrlStorage(StaticFilesStorage):
    """Files stay in their packages: nothing is collected."""

    def url(self, name: str | None) -> str:
        address: str = super().url(name)
        digest = digest_of(name or "")
        return f"{address}?{VERSION}={digest}" if digest else address


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]
    """A URL with another digest than the file's, as after an upgrade, is not cached: it would stay
    wrong."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response: HttpResponse = super().__call__(request)
        version = request.GET.get(VERSION)
        if version and request.path_info.startswith(self.static_prefix):
            name = request.path_info.removeprefix(self.static_prefix)
            if version == digest_of(name):
                response["Cache-Control"] = KEPT_LONG
        return response


@lru_cache(maxsize=1024)
def digest_of(name: str) -> str:
    """The digest of a file's contents; empty where no file has this name."""
    found: Any = finders.find(name) if name else None
    if not isinstance(found, str) or not Path(found).is_file():
        return ""
    return hashlib.sha256(Path(found).read_bytes()).hexdigest()[:DIGEST_CHARS]
