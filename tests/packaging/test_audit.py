"""The exit code of the look-up of vulnerabilities, by pip-audit's output: no network."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.cases import each_case

AUDIT = Path(__file__).resolve().parents[2] / "packaging" / "audit"
CLEAN = "No known vulnerabilities found"
FOUND = "Found 2 known vulnerabilities in 1 package"
UNANSWERED = (
    "No known vulnerabilities found\namqp  Dependency not found on PyPI and could not be audited"
)


def audit(folder: Path, output: str | None, code: int = 0) -> int:
    if output is not None:
        program = folder / "pip-audit"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
        program.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
    return subprocess.run((AUDIT,), env=environment, capture_output=True).returncode


@each_case(
    ("output", "code", "expected"),
    [(CLEAN, 0, 0), (FOUND, 1, 1), (UNANSWERED, 0, 75), ("no such host", 1, 75)],
)
def test_green_is_only_what_was_looked_up(
    tmp_path: Path, output: str, code: int, expected: int
) -> None:
    assert audit(tmp_path, output, code) == expected
