"""Python in a process of its own on a database, as a deployment would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.leftovers import MARK_VARIABLE

REPOSITORY_DIR = Path(__file__).resolve().parent.parent


def run_python(database_url: str, data_dir: Path, *arguments: str, **variables: str) -> str:
    """Runs Python with these arguments and environment variables; returns its standard output.

    Without the mark of this test run: a pytest inside it would take this run's servers for
    processes that it left behind itself.
    """
    inherited = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    environment = inherited | {
        "DATABASE_URL": database_url,
        "HELEXA_DATA_DIR": str(data_dir),
        "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
        "PYTHONPATH": str(REPOSITORY_DIR),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY_DIR,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
