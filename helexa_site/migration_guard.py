"""One process migrates at a time, by PostgreSQL's advisory lock or the lock of a file beside
SQLite's. A version that does not support the database's schema refuses to start."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from helexa_site.bootstrap.console import BootstrapError
from helexa_site.whole_file import try_lock

OLDEST = "0.2.0"
"""The release whose tables each app's first migration makes."""
OUR_PACKAGES = frozenset({"fleet", "helexa_site", "inference", "metering"})
MIGRATION_LOCK = 0x68656C66
POLL_S = 0.2


class SchemaError(BootstrapError):
    """The database's schema is newer than this version, or older than its first migrations."""


class Recorded(NamedTuple):
    known: set[tuple[str, str]]
    """As on disk: all that a squashed one replaces are that one."""
    unknown: list[str]
    """Migrations of a newer version."""
    too_old: list[str]
    """Parts of a squashed migration without the others: of a version before it."""


def recorded(migrations: Iterable[tuple[str, str]]) -> Recorded:
    names = set(migrations)
    on_disk = MigrationLoader(None).disk_migrations
    known, too_old, replaced = names & on_disk.keys(), set(), set()
    for key, migration in on_disk.items():
        replaced |= (replaces := set(migration.replaces))
        if replaces and replaces <= names:
            known.add(key)
        elif key not in names:
            too_old |= names & replaces
    return Recorded(known, _labels(names - on_disk.keys() - replaced), _labels(too_old))


def ensure_schema_is_known() -> None:
    """Raises ``SchemaError``, ``django.db.Error``."""
    ours = {one.label for one in apps.get_app_configs() if one.name.split(".")[0] in OUR_PACKAGES}
    applied = MigrationRecorder(connection).applied_migrations()
    found = recorded(key for key in applied if key[0] in ours)
    if found.unknown:
        raise SchemaError(
            f"the database is of a newer helexa than this one: it has {found.unknown[-1]}, which "
            "is not known here. Upgrade this copy, or use a database of its own version"
        )
    if found.too_old:
        raise SchemaError(
            f"the database is of a helexa before {OLDEST}: its last migration is "
            f"{found.too_old[-1]}. Upgrade it to {OLDEST} first"
        )


def missing_migrations() -> list[str]:
    """Raises ``django.db.Error``."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [str(migration) for migration, _ in plan]


def _labels(keys: Iterable[tuple[str, str]]) -> list[str]:
    return sorted(f"{app}.{name}" for app, name in keys)


@contextlib.contextmanager
def migrating_alone(report_waiting: Callable[[], None]) -> Iterator[None]:
    """``report_waiting`` is called once if another process migrates. Raises ``django.db.Error``."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "postgresql":
        # A lost connection loses its lock, too.
        with connection.cursor() as cursor:
            _wait(lambda: _locks(cursor, "pg_try_advisory_lock"), report_waiting)
        try:
            yield
        finally:
            if connection.connection is not None and connection.is_usable():
                with connection.cursor() as cursor:
                    _locks(cursor, "pg_advisory_unlock")
    elif not Path(name).parent.is_dir() or "mode=memory" in name or name == ":memory:":
        yield  # no other process has it
    else:
        with Path(f"{name}.migrating").open("w") as file:
            _wait(lambda: try_lock(file), report_waiting)
            yield


def _locks(cursor: Any, function: str) -> bool:
    cursor.execute(f"SELECT {function}(%s)", [MIGRATION_LOCK])
    return bool(cursor.fetchone()[0])


def _wait(take: Callable[[], bool], report_waiting: Callable[[], None]) -> None:
    if take():
        return
    report_waiting()
    while not take():
        time.sleep(POLL_S)
