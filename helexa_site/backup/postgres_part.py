"""PostgreSQL: a COPY of each of our tables, in one snapshot.

pg_dump is not used: it may be missing, or of another version than the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from helexa_site.backup.archive import BackupError
from helexa_site.migration_guard import recorded

FOLDER = "database"
OTHER_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def copy_tables(folder: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    (folder / FOLDER).mkdir(mode=0o700)
    rows: dict[str, int] = {}
    columns: dict[str, list[str]] = {}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for table in our_tables():
            description = connection.introspection.get_table_description(cursor, table)
            columns[table] = [column.name for column in description]
            with (folder / FOLDER / f"{table}.copy").open("wb") as file:
                with cursor.cursor.copy(f"COPY {_table(table, columns[table])} TO STDOUT") as copy:
                    for chunk in copy:
                        file.write(chunk)
            rows[table] = _count(cursor, table)
    return rows, columns


def load_tables(
    folder: Path, migrations: list[list[str]], rows: dict[str, int], columns: dict[str, list[str]]
) -> None:
    """Loads a backup into an empty database: first its tables as they were, then all rows in one
    transaction. Raises ``BackupError``."""
    _migrate_to(migrations)
    with transaction.atomic(), connection.cursor() as cursor:
        # Replaces rows that migrations have made.
        cursor.execute(f"TRUNCATE {', '.join(map(_quoted, columns))}")
        for table, names in columns.items():
            with (folder / FOLDER / f"{table}.copy").open("rb") as file:
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


def has_tables() -> bool:
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor))
    return bool(there & set(our_tables()))


def has_other_sessions() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(OTHER_SESSIONS)
        return bool(cursor.fetchone()[0])


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
