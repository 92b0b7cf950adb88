"""Makes and restores backups: the tables as they were, then the newer migrations."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from helexa_site.backup import databases
from helexa_site.backup.archive import FORMAT, BackupError, Manifest, pack, unpack
from helexa_site.backup.files_and_secrets import (
    copy_files,
    copy_secrets,
    ensure_key_fits,
    restore_files,
    restore_key,
    restore_settings,
)
from helexa_site.config import Config
from helexa_site.data_directory import LOCK_FILE
from helexa_site.migration_guard import OLDEST, recorded
from helexa_site.program import REPOSITORY_DIR, program
from helexa_site.whole_file import try_lock
from inference.settings.storage import FILES_DIR
from inference.version import VERSION


def back_up(config: Config, target: Path, *, overwrites: bool = False) -> Manifest:
    """Writes ``target`` and reads it back. The processes may run meanwhile. An existing file is
    overwritten only with ``overwrites``. Raises ``BackupError``, ``django.db.Error``."""
    if target.exists() and not overwrites:
        raise BackupError(f"{target} is there already: name another file, or add --overwrite")
    if not target.parent.is_dir():
        raise BackupError(f"there is no directory {target.parent}")
    with _scratch_beside(target) as folder:
        migrations = [list(one) for one in MigrationRecorder(connection).applied_migrations()]
        if not migrations:
            raise BackupError("there is no database to back up here yet")
        columns: dict[str, list[str]] = {}
        if connection.vendor == "sqlite":
            rows = databases.copy_file(Path(connection.settings_dict["NAME"]), folder)
        else:
            rows, columns = databases.copy_tables(folder)
        copy_files(config, folder)
        copy_secrets(config, os.environ, folder)
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            vendor=connection.vendor,
            migrations=sorted(migrations),
            rows=rows,
            columns=columns,
        )
        pack(folder, manifest, target)
    with _scratch_beside(target) as folder:
        written = unpack(target, folder)
        if written.vendor == "sqlite":
            databases.whole_rows(folder / databases.FILE)
    return written


@contextmanager
def _scratch_beside(target: Path) -> Iterator[Path]:
    """A folder on the target's own disk, which has room."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".helexa-backup-") as folder:
        yield Path(folder)


SCRATCH_DATABASE = "helexa_restore_check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    manifest: Manifest
    settings: Path
    """The environment file of the backup."""
    kept: Path | None
    """The previous database."""


def restore(config: Config, source: Path, *, replace: bool) -> Restored:
    """The database is replaced last but its key, when all else is there: a restore that fails
    leaves it as it was. Raises ``BackupError``, ``django.db.Error``."""
    with (
        tempfile.TemporaryDirectory(prefix="helexa-restore-") as scratch,
        without_serve(config.data_dir),
    ):
        folder = Path(scratch)
        manifest = unpack(source, folder)
        ensure_restorable(manifest)
        ensure_key_fits(config, folder)
        database, kept = Path(connection.settings_dict["NAME"]), None
        if manifest.vendor == "sqlite":
            _migrate_file(folder / databases.FILE, database, replace=replace)
        else:
            databases.ensure_empty()
            databases.load_tables(folder, manifest)
            call_command("migrate", verbosity=0, interactive=False)
        restore_files(config, folder)
        settings = restore_settings(config, folder)
        if manifest.vendor == "sqlite":
            kept = databases.put_in_place(folder, database)
        restore_key(config, folder)
    return Restored(manifest=manifest, settings=settings, kept=kept)


def _migrate_file(restored: Path, database: Path, *, replace: bool) -> None:
    """Migrates the restored file before it is the database."""
    databases.whole_rows(restored)
    if databases.has_rows(database) and not replace:
        raise BackupError(f"{database} is there already: --replace puts it aside")
    connection.close()
    connection.settings_dict["NAME"] = str(restored)
    call_command("migrate", verbosity=0, interactive=False)
    connection.close()
    connection.settings_dict["NAME"] = str(database)


def check(source: Path) -> None:
    """Restores into a place that is thrown away. Raises ``BackupError``."""
    environment = {**os.environ}
    for name in ("HELEXA_SECRET_KEY", FILES_DIR.name):
        environment.pop(name, None)
    with (
        tempfile.TemporaryDirectory(prefix="helexa-restore-check-") as scratch,
        _scratch_database(scratch) as url,
    ):
        done = subprocess.run(
            [sys.executable, "-m", "helexa_site", "restore", str(source)],
            cwd=REPOSITORY_DIR,
            env=environment | {"HELEXA_DATA_DIR": scratch, "DATABASE_URL": url},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise BackupError(f"it cannot be restored: {done.stderr.strip().rpartition(chr(10))[2]}")


@contextmanager
def _scratch_database(scratch: str) -> Iterator[str]:
    if connection.vendor == "sqlite":
        yield f"sqlite:///{scratch}/check.sqlite3"
        return
    parts = urlsplit(os.environ["DATABASE_URL"])
    name = f"{SCRATCH_DATABASE}_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    try:
        yield urlunsplit(parts._replace(path=f"/{name}"))
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def ensure_restorable(manifest: Manifest) -> None:
    if manifest.vendor != connection.vendor:
        raise BackupError(
            f"the backup is of {manifest.vendor}, and DATABASE_URL names a {connection.vendor}"
        )
    found = recorded((app, name) for app, name in manifest.migrations)
    if found.unknown:
        raise BackupError(
            f"the backup is of helexa {manifest.version}, whose {found.unknown[-1]} is not known "
            "here: restore it with that version or a newer one"
        )
    if found.too_old:
        raise BackupError(
            f"the backup is of helexa {manifest.version}, before {OLDEST}: restore it with that "
            f"version, upgrade it to {OLDEST}, and make another"
        )


@contextmanager
def without_serve(data_dir: Path) -> Iterator[None]:
    """Raises ``BackupError`` where a serve runs here."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (data_dir / LOCK_FILE).open("a") as file:
        if not try_lock(file):
            raise BackupError(f"{program()} serve runs on {data_dir}: stop it first")
        yield
