"""The directory on SQLite and on PostgreSQL, while another process changes what it remembers; and
the tests of services and reads on PostgreSQL as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import MARK_VARIABLE

FOLDER = Path(__file__).parent
REPOSITORY_DIR = FOLDER.parents[1]
DATABASE_TESTS = (
    "test_services.py",
    "test_key_services.py",
    "test_commands.py",
    "test_api.py",
    "test_usage_api.py",
    "test_key_store.py",
)


def run(database_url: str, data_dir: Path, *arguments: str) -> str:
    """Without the mark of this test run: a pytest inside it would take this run's servers for
    processes that it left behind itself."""
    inherited = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    environment = inherited | {
        "DATABASE_URL": database_url,
        "HELEXA_DATA_DIR": str(data_dir),
        "HELEXA_SECRET_KEY": "of this test alone, and long enough to be one",
        "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
        "PYTHONPATH": str(REPOSITORY_DIR),
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


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'helexa.sqlite3'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


def test_another_process_revokes_a_key(database_url: str, tmp_path: Path) -> None:
    """The gateway is told by nobody: its directory reads the revision."""
    program = str(FOLDER / "directory_on_a_database.py")
    assert json.loads(run(database_url, tmp_path, program)) == {
        "found": ["research", "research"],
        "refusal": "RevokedKeyError",
        "still": "research",
        "anonymous": 7,
        "used": 2,
    }


@pytest.mark.slow
@pytest.mark.postgres
def test_the_database_tests_pass_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    paths = [str(FOLDER / name) for name in DATABASE_TESTS]
    output = run(postgres_url, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths)
    assert " passed" in output
