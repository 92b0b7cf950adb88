"""A database of both kinds, to be migrated by a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.private_postgres import new_database


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.slow),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'helexa.sqlite3'}"
    return new_database(request.getfixturevalue("postgres_url"))
