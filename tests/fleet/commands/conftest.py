"""A command with this machine's database, and over REST."""

from __future__ import annotations

import urllib.error
import urllib.request
from io import BytesIO, StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from inference import proxies
from tests.fleet.api.api_support import key_api

URL = "http://fleet.example:31313"


class RunCommand:
    """Runs a command; ``out`` and ``err`` are what it wrote."""

    def __init__(self, *extra: str) -> None:
        self._extra = extra

    def __call__(self, *words: str) -> str:
        out, err = StringIO(), StringIO()
        try:
            call_command(*words, *self._extra, stdout=out, stderr=err)
        finally:
            self.err = err.getvalue()
            self.out = out.getvalue()
        return self.out


@pytest.fixture(params=["local", "rest"])
def run_command(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> RunCommand:
    if request.param == "local":
        return RunCommand()
    settings.ALLOWED_HOSTS = ["testserver"]
    key = key_api("fleet:read", "fleet:write", "accounts:read").key
    assert key is not None

    def open_url(asked: urllib.request.Request, timeout: float) -> Any:
        """The server, without a socket."""
        assert asked.full_url.startswith(URL)
        response = Client().generic(
            asked.get_method(),
            asked.full_url.removeprefix(URL),
            asked.data or b"",
            content_type="application/json",
            headers={"authorization": asked.headers["Authorization"]},
        )
        body = BytesIO(response.content)
        if response.status_code >= 400:
            raise urllib.error.HTTPError(URL, response.status_code, "", {}, body)  # type: ignore[arg-type]
        return body

    monkeypatch.setattr(proxies, "open_url", open_url)
    return RunCommand("--url", URL, "--key", key)
