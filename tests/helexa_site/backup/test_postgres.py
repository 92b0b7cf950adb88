"""A backup of PostgreSQL, verified by restoring it into another database of the same server."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from tests.helexa_site.backup.test_sqlite import manage
from tests.servers.private_postgres import new_database, running_postgres

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
USERS = """
import sys
from django.contrib.auth.models import User
for name in {names}:
    User.objects.create(username=name)
import json
print(json.dumps(list(User.objects.order_by("id").values_list("id", "username"))))
"""


def users(url: str, data_dir: Path, *new: str) -> list[list[object]]:
    """After these were made."""
    script = USERS.format(names=list(new))
    output = manage(data_dir, "shell", "--verbosity", "0", "-c", script, DATABASE_URL=url).stdout
    found: list[list[object]] = json.loads(output)
    return found


def test_what_was_backed_up_comes_back(tmp_path: Path) -> None:
    archive, elsewhere = str(tmp_path / "backup.tar.gz"), tmp_path / "elsewhere"
    with running_postgres() as server_url:
        here, there = new_database(server_url), new_database(server_url)
        manage(tmp_path, "migrate", "--verbosity", "0", DATABASE_URL=here)
        users(here, tmp_path, "alice", "bob\\tof\nthe tabs")
        manage(tmp_path, "backup", archive, DATABASE_URL=here)
        users(here, tmp_path, "later")
        manage(elsewhere, "restore", archive, DATABASE_URL=there)
        # New rows get numbers of their own.
        expected = [[1, "alice"], [2, "bob\\tof\nthe tabs"], [3, "carol"]]
        assert users(there, elsewhere, "carol") == expected
        refused = manage(elsewhere, "restore", archive, succeeds=False, DATABASE_URL=there)
        assert "holds a helexa already" in refused.stderr
        before = databases(server_url)
        manage(tmp_path, "restore", "--check", archive, DATABASE_URL=here)
        assert databases(server_url) == before


def databases(server_url: str) -> set[str]:
    with psycopg.connect(server_url) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
