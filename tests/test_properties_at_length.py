"""Every property again, with three times as many examples as the suite has time for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import MARK_VARIABLE

TESTS_DIR = Path(__file__).parent
WITH_PROPERTIES = ("acp", "fleet", "inference", "metering")


@pytest.mark.slow
@pytest.mark.limit_s(1500)
@pytest.mark.parametrize("part", WITH_PROPERTIES)
def test_properties_at_length(part: str) -> None:
    """Without the mark of this run: the pytest inside would take this run's servers for processes
    that it left behind itself."""
    environment = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
            *("--hypothesis-profile", "long", "-m", "hypothesis and not slow"),
            str(TESTS_DIR / part),
        ],
        cwd=TESTS_DIR.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_no_property_is_left_out() -> None:
    found = {
        path.relative_to(TESTS_DIR).parts[0]
        for path in TESTS_DIR.rglob("*.py")
        if "import hypothesis" in path.read_text() or "from hypothesis" in path.read_text()
    }
    assert found - {"conftest.py", Path(__file__).name} <= set(WITH_PROPERTIES)
