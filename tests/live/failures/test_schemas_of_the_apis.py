"""Schemathesis against the fleet's and the gateway's OpenAPI documents: the server answers as they
state."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helexa_site.program import REPOSITORY_DIR
from tests.browser.server import PagesServer, running_pages
from tests.live.failures.schemathesis_hooks import PLAIN, TEXT
from tests.live.scripted.model import ScriptedModel, ScriptedServe

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
SCOPES = "fleet:read,fleet:write,usage:read"
PHASES = "examples,coverage,fuzzing"
NUM_GATEWAY_EXAMPLES = 25
DOWNLOADING = "/api/pull$"
"""What reaches for the network."""
STATUSES = "statuses"
"""A file of paths and statuses, beside what schemathesis writes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesServer]:
    directory = tmp_path_factory.mktemp("schemas")
    with running_pages(directory) as server:
        yield server


def test_answers_are_as_documented(server: PagesServer, tmp_path: Path) -> None:
    """What a key without a scope is answered is in ``tests/inference/gateway/test_access.py`` and
    in the API's own tests."""
    server.command("accounts", "create", "reader")
    printed = server.command("keys", "create", "reader", "--scopes", SCOPES)
    key = re.search(r"hx-\S+", printed)
    assert key is not None, printed
    _run(
        f"{server.url}/api/schema?format=json",
        tmp_path,
        *("--header", f"Authorization: Bearer {key[0]}"),
        *("--phases", PHASES, "--max-examples", str(NUM_EXAMPLES)),
        *("--exclude-path-regex", WAITING),
    )


def test_the_gateways_answers_are_as_documented(
    scripted_server: ScriptedServe, hermes: ScriptedModel, tmp_path: Path
) -> None:
    hermes.answers(TEXT, "Hello.")
    _run(
        f"{scripted_server.url}/openapi.json",
        tmp_path,
        *("--phases", PHASES, "--max-examples", str(NUM_GATEWAY_EXAMPLES)),
        *("--exclude-path-regex", DOWNLOADING),
    )
    seen = set((tmp_path / STATUSES).read_text().splitlines())
    assert {f"{path} 200" for path in PLAIN} <= seen


def _run(document_url: str, directory: Path, *options: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", document_url, *options),
            *("--checks", ",".join(CHECKS), "--seed", "1"),
            *("--continue-on-failure", "--no-color", "--request-timeout", "120"),
        ],
        cwd=directory,
        env=os.environ
        | {
            "SCHEMATHESIS_HOOKS": "tests.live.failures.schemathesis_hooks",
            "SCHEMATHESIS_STATUSES": STATUSES,
            "PYTHONPATH": str(REPOSITORY_DIR),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert re.search(r"Tested: [1-9]", done.stdout), done.stdout
