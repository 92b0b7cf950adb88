"""One process migrates at a time, and a version older than the database refuses to start.

PostgreSQL: a session's advisory lock. SQLite: a lock on a file beside the database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from django.apps import apps
from django.db import connection
from django.db.migrations.loader import MigrationLoader

OUR_PACKAGES = frozenset({"fleet", "helexa_site", "inference", "metering"})
MIGRATION_LOCK = 0x68656C66
POLL_S = 0.2


class NewerSchemaError(Exception):
    """The database was migrated by a newer helexa than this one."""


def ensure_schema_is_not_newer() -> None:
    """Raises ``NewerSchemaError``, ``django.db.Error``."""
    loader = MigrationLoader(connection)
    ours = {one.label for one in apps.get_app_configs() if one.name.split(".")[0] in OUR_PACKAGES}
    unknown = sorted(
        f"{app}.{name}"
        for app, name in loader.applied_migrations
        if app in ours and (app, name) not in loader.disk_migrations
    )
    if unknown:
        raise NewerSchemaError(
            f"the database is of a newer helexa than this one: it has {unknown[-1]}, which is not "
            "known here. Upgrade this copy, or use a database of its own version"
        )


@contextlib.contextmanager
def migrating_alone(report_waiting: Callable[[], None]) -> Iterator[None]:
    """Waits until no other process migrates this database. ``report_waiting`` is called once where
    there is one. Raises ``django.db.Error``."""
    lock = _postgresql_lock if connection.vendor == "postgresql" else _file_lock
    with lock(report_waiting):
        yield


@contextlib.contextmanager
def _postgresql_lock(report_waiting: Callable[[], None]) -> Iterator[None]:
    def take() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [MIGRATION_LOCK])
            return bool(cursor.fetchone()[0])

    _wait(take, report_waiting)
    try:
        yield
    finally:
        # Where the connection is lost its lock is, too.
        if connection.connection is not None and connection.is_usable():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])


@contextlib.contextmanager
def _file_lock(report_waiting: Callable[[], None]) -> Iterator[None]:
    name = str(connection.settings_dict["NAME"])
    if not Path(name).parent.is_dir() or "mode=memory" in name or name == ":memory:":
        yield  # no other process has it
        return
    descriptor = os.open(f"{name}.migrating", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        _wait(take, report_waiting)
        yield
    finally:
        os.close(descriptor)


def _wait(take: Callable[[], bool], report_waiting: Callable[[], None]) -> None:
    if take():
        return
    report_waiting()
    while not take():
        time.sleep(POLL_S)
