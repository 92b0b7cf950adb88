"""Commands report a newcomer's mistakes in a sentence and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.serving import REPOSITORY_DIR, serve_environment

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]


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
