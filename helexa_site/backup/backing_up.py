"""Takes a backup."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from helexa_site.backup import postgres_part, sqlite_part
from helexa_site.backup.archive import FORMAT, Manifest, pack, unpack
from helexa_site.backup.errors import BackupError
from helexa_site.backup.files_part import copy_files
from helexa_site.backup.secrets_part import copy_secrets
from helexa_site.config import Config
from inference.version import VERSION


def back_up(config: Config, target: Path, *, overwrites: bool = False) -> Manifest:
    """Writes ``target`` and reads it back. The processes may run meanwhile. An existing file is
    overwritten only with ``overwrites``. Raises ``BackupError``, ``django.db.Error``."""
    if target.exists() and not overwrites:
        raise BackupError(f"{target} is there already: name another file, or add --overwrite")
    if not target.parent.is_dir():
        raise BackupError(f"there is no directory {target.parent}")
    # Beside the target: that is where there is to be room, and it is on no other disk.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".helexa-backup-") as scratch:
        folder = Path(scratch)
        migrations = [list(one) for one in MigrationRecorder(connection).applied_migrations()]
        if not migrations:
            raise BackupError("there is no database to back up here yet")
        columns: dict[str, list[str]] = {}
        if connection.vendor == "sqlite":
            database = Path(connection.settings_dict["NAME"])
            rows = sqlite_part.copy_database(database, folder)
        else:
            rows, columns = postgres_part.copy_tables(folder)
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
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".helexa-backup-") as scratch:
        written = unpack(target, Path(scratch))
        if written.vendor == "sqlite":
            sqlite_part.whole_rows(Path(scratch) / sqlite_part.FILE)
    return written
