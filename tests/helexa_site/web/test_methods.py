"""Every path with every method: an answer, and never a traceback's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from tests.slow_cases import slow_but

pytestmark = pytest.mark.django_db
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND")
EXPECTED_ERRORS = {503}
"""The server errors that paths may answer without a Redis."""
VALUES = {"pk": "00000000-0000-4000-8000-000000000000"}


def _paths(patterns: list[Any], prefix: str = "/") -> Iterator[str]:
    for one in patterns:
        route = str(one.pattern).removeprefix("^").removesuffix("/?$")
        if isinstance(one, URLResolver):
            yield from _paths(one.url_patterns, prefix + route)
        elif isinstance(one, URLPattern) and "(?P" not in route:
            yield prefix + route


def _filled(path: str) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda part: VALUES.get(part[1], "x"), path)


def _api_paths() -> list[str]:
    found = {_filled(path) for path in _paths(get_resolver().url_patterns)}
    return sorted(path for path in found if path.startswith(("/api/", "/version", "/docs")))


@pytest.mark.parametrize("path", slow_but(_api_paths(), *_api_paths()[::5]))
def test_every_method_is_answered(path: str, client: Client) -> None:
    client.raise_request_exception = False
    client.force_login(User.objects.create_superuser("carol"))
    for method in METHODS:
        for accept in ("*/*", "text/html", "application/json"):
            answer = client.generic(method, path, headers={"accept": accept})
            status = answer.status_code
            assert status < 500 or status in EXPECTED_ERRORS, (method, accept, status)
            if method == "OPTIONS" and path.startswith("/api/"):
                assert status in (404, 405, 406), (accept, status)
