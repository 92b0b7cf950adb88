"""Schemathesis against the fleet's OpenAPI document: the server answers as that says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.server import PagesServer
from tests.fleet.hub.conftest import running_hub
from tests.private_redis import running_redis

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(1200)]

CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
WAITING = r"(models/load|models/unload|events)$"
"""What waits for a neuron, of which there is none, and streams that do not end meanwhile."""
TIMEOUT_S = 1000
NUM_EXAMPLES = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesServer]:
    """With rows of every kind, and no neuron behind them."""
    directory = tmp_path_factory.mktemp("schemas")
    with running_redis(directory) as redis_url, running_hub() as hub_url:
        server = PagesServer(directory, redis_url, hub_url)
        yield server
        server.stop()


def _key(server: PagesServer, name: str, scopes: str) -> str:
    server.command("accounts", "create", name)
    printed = server.command("keys", "create", name, "--scopes", scopes)
    found = re.search(r"hx-\S+", printed)
    assert found is not None, printed
    return found[0]


@pytest.mark.parametrize(
    ("document", "scopes"),
    [
        ("/api/schema?format=json", "fleet:read,fleet:write,usage:read"),
        ("/api/schema?format=json", "fleet:read,inference"),
    ],
)
def test_answers_are_as_documented(
    server: PagesServer, tmp_path: Path, document: str, scopes: str
) -> None:
    key = _key(server, re.sub(r"\W", "-", scopes), scopes)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", server.url + document),
            *("--header", f"Authorization: Bearer {key}"),
            *("--checks", ",".join(CHECKS)),
            *("--phases", "examples,coverage,fuzzing"),
            *("--max-examples", str(NUM_EXAMPLES), "--seed", "1"),
            *("--exclude-path-regex", WAITING),
            *("--continue-on-failure", "--no-color", "--request-timeout", "120"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert re.search(r"Tested: [1-9]", done.stdout), done.stdout
