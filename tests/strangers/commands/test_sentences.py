"""Commands and scripts report a newcomer's mistakes in a sentence and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases import each_case
from tests.live.serving import REPOSITORY_DIR, Serve, serve_environment

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

USAGE_CODE = 2
SCRIPTS = {
    "bench": ("--help", "--no-such-flag"),
    "bench-gateway": ("--help", "--no-such-flag"),
    "first-hour-on-a-card": ("--help", "--no-such-flag"),
    "lines": ("--help", "--no-such-flag", "no-such-commit"),
    "nightly": ("--help", "--no-such-flag", "--files none"),
    "try-clients": ("--help", "--no-such-flag"),
    "in-environment": ("", "no_such_package no.such.module"),
    "release": ("", "--help", "--no-such-flag", "not-a-version"),
    "slow": ("--help", "--no-such-flag"),
    "rolling-deploy": ("", "--help", "--no-such-flag", "--upgrade", "--upgrade true"),
    "validate-neuron": ("", "--help"),
}
"""How each is called, without anything that it could do."""
SPEAK_TO_A_SERVER = {
    "validate-neuron": ["beast"],
    "rolling-deploy": ["--upgrade", "true", "beast"],
}
WITHOUT_ARGUMENTS = {"check"}
"""It takes none, and does all of its work."""


def ran(situation: dict[str, Any], data_dir: Path) -> list[dict[str, Any]]:
    environment = serve_environment() | {
        "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
        "HELEXA_DATA_DIR": str(data_dir),
        "PYTHONPATH": str(REPOSITORY_DIR),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.strangers.commands.inventory", json.dumps(situation)],
        env=environment,
        cwd=REPOSITORY_DIR,
        stdout=subprocess.PIPE,
        text=True,
        timeout=800,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def problems_of(case: dict[str, Any]) -> str | None:
    words, code, printed = " ".join(case["words"]), case["code"], case["output"] + case["errors"]
    if "Traceback (most recent call last)" in printed:
        return f"{words}: a traceback: {printed[-600:]}"
    if code < 0:
        return f"{words}: it was ended by signal {-code}"
    if "--help" in case["words"] and (code != 0 or "usage: " not in printed):
        return f"{words}: no help: {code}, {printed[-200:]}"
    if "--no-such-flag" in case["words"] and (code == 0 or "--no-such-flag" not in printed):
        return f"{words}: the flag is not refused by name: {code}, {printed[-200:]}"
    if code != 0 and not case["errors"].strip() and case["words"][0] not in ("deploy_gate",):
        return f"{words}: it failed without a word on standard error"
    return None


def test_there_is_an_inventory(tmp_path: Path) -> None:
    cases = ran({"url": "http://127.0.0.1:1", "keys": []}, tmp_path / "nothing")
    assert len(cases) > 150
    assert [problem for case in cases if (problem := problems_of(case))] == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(tmp_path_factory.mktemp("keys") / "var", "--no-model") as serve:
        yield serve


def weak_key(server: Serve) -> str:
    """Makes a key of an account that may read its own usage alone."""
    manage = [sys.executable, str(REPOSITORY_DIR / "manage.py")]
    environment = server.find("gateway").environ()
    subprocess.run([*manage, "accounts", "create", "weak"], env=environment, check=True)
    words = ("keys", "create", "weak", "--scopes", "usage:read", "--json")
    made = subprocess.check_output([*manage, *words], env=environment)
    return str(json.loads(made)["key"])


def test_a_key_without_the_scope_is_refused_in_a_sentence(server: Serve, tmp_path: Path) -> None:
    key = weak_key(server)
    cases = ran({"url": server.url, "keys": [key, "hx-nobodys"]}, tmp_path / "nothing")
    assert len(cases) > 40
    assert [problem for case in cases if (problem := problems_of(case))] == []
    asked = [case for case in cases if case["words"][0] in ("models", "neurons") and case["code"]]
    assert any("fleet:read" in case["errors"] for case in asked)
    for script, arguments in SPEAK_TO_A_SERVER.items():
        done = script_run(script, *arguments, HELEXA_URL=server.url, HELEXA_API_KEY=key)
        assert done.returncode == 1
        assert "fleet:read" in done.stderr
        assert "Traceback" not in done.stderr


def script_run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [str(REPOSITORY_DIR / "scripts" / name), *arguments],
        env=serve_environment() | {"PATH": path} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_script_is_in_the_inventory() -> None:
    names = {path.name for path in (REPOSITORY_DIR / "scripts").iterdir() if path.is_file()}
    assert names == {*SCRIPTS, *WITHOUT_ARGUMENTS}


@each_case(
    ("name", "arguments"), [(name, words) for name, calls in SCRIPTS.items() for words in calls]
)
def test_a_script_prints_its_usage(name: str, arguments: str) -> None:
    done = script_run(name, *arguments.split())
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed
    assert printed.strip()
    if arguments == "--help" and done.returncode == 0:
        assert "usage: " in printed
    else:
        assert done.returncode in (1, USAGE_CODE)


@each_case("name", SPEAK_TO_A_SERVER)
def test_a_server_that_is_away_is_reported(name: str) -> None:
    done = script_run(name, *SPEAK_TO_A_SERVER[name], HELEXA_URL="http://127.0.0.1:1")
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr
