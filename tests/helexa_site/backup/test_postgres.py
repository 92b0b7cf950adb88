"""A backup of PostgreSQL, verified by restoring it into another database of the same server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.helexa_site.backup.test_sqlite import manage
from tests.servers.private_postgres import running_postgres

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
USERS = """
import sys
from django.contrib.auth.models import User
for name in {names}:
    User.objects.create(username=name)
import json
print(json.dumps(list(User.objects.order_by("id").values_list("id", "username"))))
"""


@pytest.fixture
def server_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


def new_database(server_url: str, name: str) -> str:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))


def users(url: str, data_dir: Path, *new: str) -> list[list[object]]:
    """After these were made."""
    script = USERS.format(names=list(new))
    output = manage(data_dir, "shell", "--verbosity", "0", "-c", script, DATABASE_URL=url).stdout
    found: list[list[object]] = json.loads(output)
    return found


def test_what_was_backed_up_comes_back(server_url: str, tmp_path: Path) -> None:
    here, there = (new_database(server_url, name) for name in ("here", "there"))
    archive = str(tmp_path / "backup.tar.gz")
    manage(tmp_path, "migrate", "--verbosity", "0", DATABASE_URL=here)
    users(here, tmp_path, "alice", "bob\\tof\nthe tabs")
    manage(tmp_path, "backup", archive, DATABASE_URL=here)
    users(here, tmp_path, "later")

    elsewhere = tmp_path / "elsewhere"
    manage(elsewhere, "restore", archive, DATABASE_URL=there)
    # New rows get numbers of their own.
    expected = [[1, "alice"], [2, "bob\\tof\nthe tabs"], [3, "carol"]]
    assert users(there, elsewhere, "carol") == expected
    assert (elsewhere / "secret_key").read_text() == (tmp_path / "secret_key").read_text()
    refused = manage(elsewhere, "restore", archive, succeeds=False, DATABASE_URL=there)
    assert "holds a helexa already" in refused.stderr

    manage(tmp_path, "restore", "--check", archive, DATABASE_URL=here)
    with psycopg.connect(server_url) as connection:
        names = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
    assert names == {"here", "there", "postgres", "template0", "template1"}
