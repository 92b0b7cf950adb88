"""The message of serve while there is no API key: a command that works as it stands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helexa_site.bootstrap.serve import first_key_lines
from helexa_site.program import REPOSITORY_DIR
from tests.leftovers import MARK_VARIABLE


def lines(
    data_dir: Path = REPOSITORY_DIR / "var",
    program: str = "python3 manage.py",
    *,
    is_open: bool = True,
    has_database_url: bool = False,
) -> list[str]:
    return first_key_lines(data_dir, program, is_open=is_open, has_database_url=has_database_url)


def test_who_needs_one() -> None:
    assert "may have one" in lines(is_open=True)[0]
    assert "need one" in lines(is_open=False)[0]


def test_a_database_with_an_address_has_to_be_known_to_the_command() -> None:
    assert "DATABASE_URL" in lines(has_database_url=True)[0]
    assert "DATABASE_URL" not in lines(has_database_url=False)[0]


def test_the_usual_data_directory_is_not_named() -> None:
    command = lines()[1]
    assert command == (
        "python3 manage.py accounts create team && python3 manage.py keys create team"
    )


@pytest.mark.slow
def test_the_command_works(tmp_path: Path, migrated_sqlite: Path) -> None:
    """It runs in a directory whose name needs quotes, with nothing else in the environment."""
    data_dir = tmp_path / "some data"
    data_dir.mkdir()
    (data_dir / "secret_key").write_text("a secret key of this test, long enough to be one")
    shutil.copy(migrated_sqlite, data_dir)
    manage = REPOSITORY_DIR / "manage.py"
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    if MARK_VARIABLE in os.environ:
        environment[MARK_VARIABLE] = os.environ[MARK_VARIABLE]
    command = lines(data_dir, f"python3 {manage}")[1]
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("hx-")
    again = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert again.returncode == 1
    assert "already" in again.stderr
    assert "Traceback" not in again.stderr


@pytest.mark.django_db
def test_whether_there_are_keys() -> None:
    from helexa_site.bootstrap.database import has_keys
    from metering.actor import COMMAND
    from metering.services import account_create, key_create

    assert not has_keys()
    key_create(actor=COMMAND, account=account_create(actor=COMMAND, name="some-team"))
    assert has_keys()
