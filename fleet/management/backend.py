"""How commands reach the fleet: the REST API of a server, or the same views in this process.

--url, --key (HELEXA_URL, HELEXA_API_KEY) ─▶ RestBackend
neither                                   ─▶ LocalBackend, with the database of this machine
"""

from __future__ import annotations

import io
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from argparse import ArgumentParser
from typing import Any, Protocol

from django.core.handlers.wsgi import WSGIRequest
from django.core.management.base import CommandError
from django.urls import resolve

TIMEOUT_S = 60.0
PAGE = 500


class Backend(Protocol):
    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of ``/api/{path}``. Raises ``CommandError`` with the reason of a refusal."""
        ...


class RestBackend:
    def __init__(self, url: str, key: str | None) -> None:
        self._url = url.rstrip("/")
        self._key = key

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._url}/api/{path}", data=data, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return _json(response.read())
        except urllib.error.HTTPError as error:
            raise CommandError(_reason(error.code, error.read())) from error
        except (OSError, ValueError) as error:
            raise CommandError(f"{self._url} does not answer: {error}") from error


class LocalBackend:
    """As whoever can run ``manage.py`` here, who may do everything."""

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        quoted, _, query = path.partition("?")
        where = urllib.parse.unquote(quoted)
        request = WSGIRequest(
            {
                "REQUEST_METHOD": method,
                "PATH_INFO": f"/api/{where}",
                "QUERY_STRING": query,
                "SERVER_NAME": "localhost",
                "SERVER_PORT": "80",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "CONTENT_TYPE": "application/json",
                "CONTENT_LENGTH": str(len(data)),
                "wsgi.url_scheme": "http",
                "wsgi.input": io.BytesIO(data),
            }
        )
        request.is_of_command = True  # type: ignore[attr-defined]
        found = resolve(f"/api/{where}")
        response = found.func(request, *found.args, **found.kwargs).render()
        if response.status_code >= 400:
            raise CommandError(_reason(response.status_code, response.content))
        return _json(response.content)


def add_backend_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--url", help="of a server, as http://gpu-box:31313 (or HELEXA_URL)")
    parser.add_argument(
        "--key", help="with the scopes fleet:read and fleet:write (or HELEXA_API_KEY)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def backend_of(options: dict[str, Any]) -> Backend:
    url = options["url"] or os.environ.get("HELEXA_URL")
    if not url:
        if options["key"]:
            raise CommandError("--key goes with --url (or HELEXA_URL)")
        return LocalBackend()
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"{url!r} is not like http://gpu-box:31313")
    return RestBackend(url, options["key"] or os.environ.get("HELEXA_API_KEY"))


def rows_of(backend: Backend, path: str) -> list[dict[str, Any]]:
    """All pages of a list."""
    rows: list[dict[str, Any]] = []
    joint = "&" if "?" in path else "?"
    while True:
        page = backend.ask("GET", f"{path}{joint}limit={PAGE}&offset={len(rows)}")
        rows += page["data"]
        if page["next"] is None:
            return rows


def _json(content: bytes) -> Any:
    return json.loads(content) if content else None


def _reason(status: int, content: bytes) -> str:
    try:
        problem = json.loads(content)
        if "error" in problem:  # the original's paths, which tell a text alone
            return str(problem["error"])
        param = f"{problem['param']}: " if problem.get("param") else ""
        return f"{param}{problem['detail']}"
    except (ValueError, KeyError, TypeError):
        return f"the server answers {status}"
