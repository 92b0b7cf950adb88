"""The directory on SQLite and on PostgreSQL, while another process changes what it remembers; and
the tests of services and reads on PostgreSQL as well."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.own_python import run_python

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent
WITH_A_KEY = {"HELEXA_SECRET_KEY": "of this test alone, and long enough to be one"}
DATABASE_TESTS = (
    "services/test_services.py",
    "commands/test_commands.py",
    "api/test_api.py",
    "keys/test_store.py",
)


def test_another_process_revokes_a_key(migrated_sqlite: Path, tmp_path: Path) -> None:
    """The gateway gets no message: its directory reads the revision."""
    shutil.copy(migrated_sqlite, tmp_path)
    check_revoking(f"sqlite:///{tmp_path / migrated_sqlite.name}", tmp_path)


@pytest.mark.postgres
def test_on_postgresql_as_well(postgres_url: str, tmp_path: Path) -> None:
    check_revoking(postgres_url, tmp_path)


def check_revoking(database_url: str, data_dir: Path) -> None:
    program = str(FOLDER / "directory_on_a_database.py")
    assert json.loads(run_python(database_url, data_dir, program, **WITH_A_KEY)) == {
        "found": ["research", "research"],
        "refusal": "RevokedKeyError",
        "still": "research",
        "anonymous": 7,
        "used": 2,
    }


@pytest.mark.postgres
def test_the_database_tests_pass_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    paths = [str(FOLDER.parent / name) for name in DATABASE_TESTS]
    pytest_arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *paths)
    output = run_python(postgres_url, tmp_path, *pytest_arguments, **WITH_A_KEY)
    assert " passed" in output
