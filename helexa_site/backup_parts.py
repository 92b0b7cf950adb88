"""The parts of a backup. SQLite: a copy of the file, made by SQLite itself. PostgreSQL: a COPY of
each of our tables, in one snapshot; pg_dump may be missing, or of another version than the
server."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from helexa_site.config import FILES_FOLDER, SECRET_KEY_FILE, Config
from helexa_site.data_directory import JOINED, secret_key
from helexa_site.doctor import SET_BY_THE_START
from helexa_site.migration_guard import recorded
from helexa_site.whole_file import write_whole, written_whole
from inference.settings.gateway import SECRET_KEY
from inference.settings.installation import URL
from inference.settings.table import NAMES

DATABASE_FOLDER = "database"
DATABASE_FILE = f"{DATABASE_FOLDER}/helexa.sqlite3"
BUSY_TIMEOUT_S = 60.0
OTHER_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


class BackupError(Exception):
    """A backup or a restore failed. It has changed nothing, or undone what it had begun."""


def os_error_text(error: OSError, place: Path) -> str:
    return str(error) if error.filename is not None else f"{place}: {error.strerror}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    format: int
    version: str
    made_at: str
    vendor: str
    migrations: list[list[str]]
    """``[app, name]`` of each."""
    rows: dict[str, int]
    columns: dict[str, list[str]] = field(default_factory=dict)
    """In the order of the copy; PostgreSQL only."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 by path."""


def _opened(database: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S))


def copy_file(database: Path, folder: Path) -> dict[str, int]:
    """Returns rows by table. In WAL mode a reader blocks no writer. Raises ``BackupError``."""
    target = folder / DATABASE_FILE
    target.parent.mkdir(mode=0o700)
    try:
        with _opened(database) as source, _opened(target) as copy:
            source.backup(copy)
            # One file, without a log beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise BackupError(f"{database} cannot be copied: {error}") from error
    return whole_rows(target)


def whole_rows(database: Path) -> dict[str, int]:
    """Returns rows by table, after an integrity check. Raises ``BackupError``."""
    try:
        with _opened(database) as opened:
            found = opened.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise BackupError(f"{database} is damaged: {found}")
            if broken := opened.execute("PRAGMA foreign_key_check").fetchone():
                raise BackupError(f"{database} is damaged: a row of {broken[0]} refers to nothing")
            names = opened.execute(
                "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'"
            ).fetchall()
            return {
                name: int(opened.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])
                for (name,) in names
            }
    except sqlite3.Error as error:
        raise BackupError(f"{database} is damaged: {error}") from error


def has_rows(database: Path) -> bool:
    if not database.exists():
        return False
    try:
        with _opened(database) as opened:
            return bool(opened.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.Error:
        return True


def put_in_place(folder: Path, database: Path) -> Path | None:
    """Returns the new path of the previous database, which stays where the disk is full."""
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / DATABASE_FILE).open("rb") as source, written_whole(database) as target:
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
        return _put_aside(database) if database.exists() else None


def _put_aside(database: Path) -> Path:
    """Takes the WAL along: a damaged database may have left one."""
    kept = database.with_name(f"{database.name}.before-{time.strftime('%Y%m%dT%H%M%S')}")
    with contextlib.suppress(sqlite3.Error), _opened(database) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("", "-wal", "-shm"):
        name = database.with_name(database.name + suffix)
        if name.exists():
            name.replace(kept.with_name(kept.name + suffix))
    return kept


def copy_tables(folder: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    (folder / DATABASE_FOLDER).mkdir(mode=0o700)
    rows: dict[str, int] = {}
    columns: dict[str, list[str]] = {}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for table in our_tables():
            description = connection.introspection.get_table_description(cursor, table)
            columns[table] = [column.name for column in description]
            with (folder / DATABASE_FOLDER / f"{table}.copy").open("wb") as file:
                with cursor.cursor.copy(f"COPY {_table(table, columns[table])} TO STDOUT") as copy:
                    for chunk in copy:
                        file.write(chunk)
            rows[table] = _count(cursor, table)
    return rows, columns


def load_tables(folder: Path, manifest: Manifest) -> None:
    """First its tables as they were, then all rows in one transaction. Raises ``BackupError``."""
    columns, rows = manifest.columns, manifest.rows
    _migrate_to(manifest.migrations)
    with transaction.atomic(), connection.cursor() as cursor:
        # Replaces rows that migrations have made.
        cursor.execute(f"TRUNCATE {', '.join(map(_quoted, columns))}")
        for table, names in columns.items():
            with (folder / DATABASE_FOLDER / f"{table}.copy").open("rb") as file:
                with cursor.cursor.copy(f"COPY {_table(table, names)} FROM STDIN") as copy:
                    while chunk := file.read(1 << 20):
                        copy.write(chunk)
            if (found := _count(cursor, table)) != rows[table]:
                raise BackupError(f"{table} has {found} rows, and {rows[table]} were backed up")
            for name in names:
                _reset_sequence(cursor, table, name)


def our_tables() -> list[str]:
    known = set(connection.introspection.django_table_names(only_existing=True))
    return sorted(known | {MigrationRecorder.Migration._meta.db_table})


def ensure_empty() -> None:
    """Raises ``BackupError``."""
    with connection.cursor() as cursor:
        if set(connection.introspection.table_names(cursor)) & set(our_tables()):
            raise BackupError(
                "the database that DATABASE_URL names holds a helexa already: make an empty one "
                "(createdb), name that, and restore there; the old one stays as it is"
            )
        cursor.execute(OTHER_SESSIONS)
        if cursor.fetchone()[0]:
            raise BackupError("others are connected to this database: stop them first")


def _migrate_to(migrations: list[list[str]]) -> None:
    executor = MigrationExecutor(connection)
    known = recorded((app, name) for app, name in migrations).known
    nodes = executor.loader.graph.node_map
    # The last ones: naming one before them would migrate back to it.
    targets = [key for key in sorted(known) if not known & {one.key for one in nodes[key].children}]
    executor.migrate(targets, executor.migration_plan(targets))


def _reset_sequence(cursor: Any, table: str, column: str) -> None:
    cursor.execute("SELECT pg_get_serial_sequence(%s, %s)", [_quoted(table), column])
    if (sequence := cursor.fetchone()[0]) is not None:
        cursor.execute(
            f"SELECT setval(%s, coalesce(max({_quoted(column)}), 0) + 1, false) "
            f"FROM {_quoted(table)}",
            [sequence],
        )


def _count(cursor: Any, table: str) -> int:
    cursor.execute(f"SELECT count(*) FROM {_quoted(table)}")
    return int(cursor.fetchone()[0])


def _table(table: str, columns: list[str]) -> str:
    return f"{_quoted(table)} ({', '.join(map(_quoted, columns))})"


def _quoted(name: str) -> str:
    return str(connection.ops.quote_name(name))


def copy_files(config: Config, folder: Path) -> None:
    """Runs after the database's copy, so that each row has its content."""
    source = config.stored_files_dir
    target = folder / FILES_FOLDER
    for path in source.iterdir() if source.is_dir() else ():
        if path.is_file():
            target.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                _copy(path, target / path.name)


def restore_files(config: Config, folder: Path) -> None:
    source = folder / FILES_FOLDER
    if not source.is_dir():
        return
    target = config.stored_files_dir
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in source.iterdir():
        with path.open("rb") as file, written_whole(target / path.name) as new:
            shutil.copyfileobj(file, new)


def _copy(source: Path, target: Path) -> None:
    """A finished file never changes, so a link is a copy of it; unfinished results still grow."""
    if "." not in source.name:
        try:
            os.link(source, target)
            return
        except OSError:  # on another disk, or one without links
            pass
    shutil.copyfile(source, target)


SETTINGS = "settings.env"
OF_THE_MOMENT = SET_BY_THE_START | {
    SECRET_KEY.name,  # a file of its own
    URL.name,
}


def copy_secrets(config: Config, environment: Mapping[str, str], folder: Path) -> None:
    write_whole(folder / SECRET_KEY_FILE, secret_key(config))
    write_whole(folder / SETTINGS, settings_text(environment))
    if (joined := config.data_dir / JOINED).is_dir():
        shutil.copytree(joined, folder / JOINED)


def settings_text(environment: Mapping[str, str]) -> str:
    names = sorted((NAMES - OF_THE_MOMENT) & environment.keys())
    return "".join(f"{name}={shlex.quote(environment[name])}\n" for name in names)


def ensure_key_fits(config: Config, folder: Path) -> None:
    """Raises ``BackupError`` for another key here: restored sessions and API keys would be
    invalid."""
    restored = (folder / SECRET_KEY_FILE).read_text()
    if config.secret_key is not None and config.secret_key != restored:
        raise BackupError(
            "HELEXA_SECRET_KEY is another one here than in the backup, and no API key of the "
            "backup would be known: unset it, or set it to what is in the backup's secret_key"
        )


def restore_settings(config: Config, folder: Path) -> Path:
    """Returns a file: the operator sets them again, because addresses may have changed."""
    if (joined := folder / JOINED).is_dir():
        (config.data_dir / JOINED).mkdir(mode=0o700, exist_ok=True)
        for path in joined.iterdir():
            _put(path, config.data_dir / JOINED / path.name)
    settings = config.data_dir / f"restored-{SETTINGS}"
    _put(folder / SETTINGS, settings)
    return settings


def restore_key(config: Config, folder: Path) -> None:
    if config.secret_key is None:
        _put(folder / SECRET_KEY_FILE, config.data_dir / SECRET_KEY_FILE)


def _put(source: Path, target: Path) -> None:
    text = source.read_text()
    if target.exists() and (existing := target.read_text()) != text:
        write_whole(target.with_name(f"{target.name}.before-restore"), existing)
    write_whole(target, text)
