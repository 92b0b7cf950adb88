"""The tests' database as the migrations left it: to go back to, and to make files of.

What a test committed is undone by copying it back. Django would empty every table and let its
applications fill theirs again, which takes a fifth of a second each time and takes away the rows
that migrations made.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from django.db import connection
from django.test import TransactionTestCase
from django.test.utils import setup_databases, teardown_databases


class MakeSqlite(Protocol):
    def __call__(self, write: Callable[[], object] = ...) -> Path: ...


class MigratedDatabase:
    def __init__(self, copy: sqlite3.Connection) -> None:
        self._copy = copy

    @contextmanager
    def restored_after_tests(self) -> Iterator[None]:
        """Restores the database until the end, after each test that commits."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _test: self.restore())
            yield

    def restore(self) -> None:
        connection.ensure_connection()
        self._copy.backup(connection.connection)

    def save_with(self, write: Callable[[], object], path: Path) -> None:
        """A file with what ``write`` commits beside, which the tests' own database is without."""
        assert not connection.in_atomic_block, "a fixture of one test's"
        try:
            write()
            connection.ensure_connection()
            with closing(sqlite3.connect(path)) as file:
                connection.connection.backup(file)
        finally:
            self.restore()


@contextmanager
def migrated_database(
    config: pytest.Config, common_dir: Path | None
) -> Iterator[MigratedDatabase | None]:
    """``None`` where it is not in memory: on PostgreSQL Django does as it always does.

    ``common_dir``: of the processes that share this run, of which one migrates for all."""
    keeps = bool(config.getvalue("reuse_db"))
    with taken_over(common_dir):
        made = setup_databases(
            verbosity=0, interactive=False, aliases={connection.alias}, keepdb=keeps
        )
    try:
        if connection.vendor != "sqlite" or not connection.is_in_memory_db():
            yield None
            return
        with closing(sqlite3.connect(":memory:")) as copy:
            connection.ensure_connection()
            connection.connection.backup(copy)
            yield MigratedDatabase(copy)
    finally:
        if not keeps:
            if connection.vendor == "postgresql":
                _end_other_sessions()
            teardown_databases(made, verbosity=0)


@contextmanager
def taken_over(common_dir: Path | None) -> Iterator[None]:
    """The code inside finds a database that is migrated already, where another process of the run
    has one. The first leaves its own for the others, who wait for it."""
    name = connection.creation._get_test_db_name()
    if common_dir is None or connection.vendor != "sqlite" or "mode=memory" not in name:
        yield
        return
    file = common_dir / "migrated.sqlite3"
    with (common_dir / "migrated.lock").open("w") as lock, ExitStack() as held:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_there = file.exists()
        if is_there:
            # Open until Django has opened it as well: a database in memory is gone with its last.
            memory = held.enter_context(closing(sqlite3.connect(name, uri=True)))
            with closing(sqlite3.connect(file)) as left:
                left.backup(memory)
        yield
        if not is_there:
            part = file.with_suffix(".part")
            connection.ensure_connection()
            with closing(sqlite3.connect(part)) as left:
                connection.connection.backup(left)
            part.replace(file)


def _end_other_sessions() -> None:
    """Ends the sessions of processes that a test killed, which the server has not noticed yet, and
    of threads that are ending: a database with sessions cannot be dropped."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
