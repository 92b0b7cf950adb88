"""A scripted endpoint, and the command on it."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from django.core.management import call_command

from inference import proxies
from tests.metering.bench.scripted_endpoint import URL, Script
from tests.metering.commands.command_output import output


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def endpoint(script: Script, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(proxies, "open_url", script.open_url)
    return URL


@dataclass(frozen=True)
class Bench:
    """``manage.py bench``: what it prints."""

    url: str

    def __call__(self, *words: str) -> str:
        return output("bench", *words)

    def judged(self, *words: str) -> tuple[int, str, str]:
        """The exit code of ``compare``, its table and its verdict."""
        text, verdict, code = io.StringIO(), io.StringIO(), 0
        try:
            call_command("bench", "compare", *words, stdout=text, stderr=verdict)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, text.getvalue(), verdict.getvalue().strip()

    def once(self, *words: str, name: str = "peer") -> str:
        whom = ("--endpoint", self.url, "--name", name, "--pause", "0")
        return self("once", *whom, *words)


@pytest.fixture
def bench(db: None, endpoint: str) -> Bench:
    return Bench(endpoint)
