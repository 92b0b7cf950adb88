"""SQLite: copies the file while others write to it, and puts a restored one in its place."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from pathlib import Path

from helexa_site.backup.archive import BackupError
from helexa_site.whole_file import written_whole

FILE = "database/helexa.sqlite3"
BUSY_TIMEOUT_S = 60.0


def copy_database(database: Path, folder: Path) -> dict[str, int]:
    """Returns rows by table. A reader of a database in WAL mode blocks no writer. Raises
    ``BackupError``."""
    target = folder / FILE
    target.parent.mkdir(mode=0o700)
    try:
        with (
            contextlib.closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            # One file, without a log beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
        return whole_rows(target)
    except sqlite3.Error as error:
        raise BackupError(f"{database} cannot be copied: {error}") from error


def whole_rows(database: Path) -> dict[str, int]:
    """Returns rows by table, after an integrity check. Raises ``BackupError``."""
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise BackupError(f"{database} is damaged: {found}")
            if broken := connection.execute("PRAGMA foreign_key_check").fetchone():
                raise BackupError(f"{database} is damaged: a row of {broken[0]} refers to nothing")
            names = connection.execute(
                "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'"
            ).fetchall()
            return {
                name: int(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])
                for (name,) in names
            }
    except sqlite3.Error as error:
        raise BackupError(f"{database} is damaged: {error}") from error


def has_rows(database: Path) -> bool:
    """Whether the database has been used: a new one may be replaced."""
    if not database.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return bool(tables[0])
    except sqlite3.Error:
        return True


def put_in_place(folder: Path, database: Path) -> Path | None:
    """Makes the restored file the database. Returns the new path of the previous one, which stays
    where there is no room for the new one."""
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / FILE).open("rb") as source, written_whole(database) as target:
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
        return _put_aside(database) if database.exists() else None


def _put_aside(database: Path) -> Path:
    """Renames the database with its log, which a damaged one may have left; returns the new
    path."""
    kept = database.with_name(f"{database.name}.before-{time.strftime('%Y%m%dT%H%M%S')}")
    with contextlib.suppress(sqlite3.Error):
        with contextlib.closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("", "-wal", "-shm"):
        name = database.with_name(database.name + suffix)
        if name.exists():
            name.replace(kept.with_name(kept.name + suffix))
    return kept
