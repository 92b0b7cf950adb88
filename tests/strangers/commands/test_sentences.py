"""Commands and scripts report a newcomer's mistakes in a sentence and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases import each_case
from tests.live.serving import REPOSITORY_DIR, serve_environment

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

USAGE_CODE = 2
SCRIPTS = {
    **dict.fromkeys(
        ("bench", "bench-gateway", "first-hour-on-a-card", "slow", "try-clients"),
        ("--help", "--no-such-flag"),
    ),
    "lines": ("--help", "--no-such-flag", "no-such-commit"),
    "nightly": ("--help", "--no-such-flag", "--files none"),
    "in-environment": ("", "no_such_package no.such.module"),
    "release": ("", "--help", "--no-such-flag", "not-a-version"),
    "rolling-deploy": (
        *("", "--help", "--no-such-flag", "--upgrade", "--upgrade true"),
        "--upgrade true beast",
    ),
    "validate-neuron": ("", "--help", "beast"),
}
"""How each is called, without anything that it could do."""
SPEAK_TO_A_SERVER = ("beast", "--upgrade true beast")
WITHOUT_ARGUMENTS = {"check"}
"""It takes none, and does all of its work."""


def problems_of(case: dict[str, Any]) -> str | None:
    words, code, printed = " ".join(case["words"]), case["code"], case["output"] + case["errors"]
    if "Traceback (most recent call last)" in printed:
        return f"{words}: a traceback: {printed[-600:]}"
    if code < 0:
        return f"{words}: it was ended by signal {-code}"
    if "--no-such-flag" in case["words"] and (code == 0 or "--no-such-flag" not in printed):
        return f"{words}: the flag is not refused by name: {code}, {printed[-200:]}"
    if code != 0 and not case["errors"].strip() and case["words"][0] not in ("deploy_gate",):
        return f"{words}: it failed without a word on standard error"
    return None


def test_every_command_reports_a_mistake_in_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.strangers.commands.inventory"],
        env=serve_environment()
        | {
            "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
            "HELEXA_DATA_DIR": str(tmp_path / "nothing"),
            "PYTHONPATH": str(REPOSITORY_DIR),
        },
        cwd=REPOSITORY_DIR,
        stdout=subprocess.PIPE,
        text=True,
        timeout=800,
        check=True,
    )
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) > 100
    assert [problem for case in cases if (problem := problems_of(case))] == []


def test_every_script_is_in_the_inventory() -> None:
    names = {path.name for path in (REPOSITORY_DIR / "scripts").iterdir() if path.is_file()}
    assert names == {*SCRIPTS, *WITHOUT_ARGUMENTS}


@each_case(
    ("name", "arguments"), [(name, words) for name, calls in SCRIPTS.items() for words in calls]
)
def test_a_script_prints_its_usage(name: str, arguments: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(REPOSITORY_DIR / "scripts" / name), *arguments.split()],
        env=serve_environment() | {"PATH": path, "HELEXA_URL": "http://127.0.0.1:1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed
    assert printed.strip()
    if arguments in SPEAK_TO_A_SERVER:
        assert done.returncode == 1 and "does not answer" in done.stderr
    elif arguments == "--help" and done.returncode == 0:
        assert "usage: " in printed
    else:
        assert done.returncode in (1, USAGE_CODE)
