"""A scripted endpoint, and the command on it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from django.core.management import call_command

from tests.metering.bench.scripted_endpoint import Script, running_endpoint
from tests.metering.commands.command_output import output


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def endpoint(script: Script) -> Iterator[str]:
    with running_endpoint(script) as url:
        yield url


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
