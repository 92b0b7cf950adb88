"""Commands where no database has been set up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.own_python import REPOSITORY_DIR


@pytest.mark.slow
@pytest.mark.parametrize("words", ["keys list", "changepassword admin"])
def test_a_command_leaves_no_database_behind(tmp_path: Path, words: str) -> None:
    """Django's own neither."""
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, str(REPOSITORY_DIR / "manage.py"), *words.split()],
        env=kept | {"HELEXA_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "Has it been set up" in done.stderr and "unable to open" in done.stderr
    assert not list(tmp_path.glob("helexa.sqlite3*"))
