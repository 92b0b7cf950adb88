"""``manage.py backup`` and ``restore``: one archive, mode 0600, with the database, clients' files
and results of batches, secrets, set variables, and a manifest. It has no models, which are
downloaded again, and nothing of Redis, which has only live state."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from helexa_site.backup_parts import (
    DATABASE_FILE,
    BackupError,
    Manifest,
    copy_file,
    copy_files,
    copy_secrets,
    copy_tables,
    ensure_empty,
    ensure_key_fits,
    has_rows,
    load_tables,
    put_in_place,
    restore_files,
    restore_key,
    restore_settings,
    whole_rows,
)
from helexa_site.config import Config
from helexa_site.data_directory import LOCK_FILE
from helexa_site.migration_guard import OLDEST, recorded
from helexa_site.program import REPOSITORY_DIR, program
from helexa_site.whole_file import try_lock, written_whole
from inference.settings.storage import FILES_DIR
from inference.version import VERSION

SCRATCH_DATABASE = "helexa_restore_check"
FORMAT = 1
MANIFEST = "manifest.json"
RETIRED_APPS = frozenset({"axes"})
"""Apps of earlier releases: databases still have their tables and migrations."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def back_up(config: Config, target: Path, *, overwrites: bool = False) -> Manifest:
    """Safe while the processes run. Raises ``BackupError``, ``django.db.Error``."""
    if target.exists() and not overwrites:
        raise BackupError(f"{target} is there already: name another file, or add --overwrite")
    if not target.parent.is_dir():
        raise BackupError(f"there is no directory {target.parent}")
    with _scratch_beside(target) as scratch:
        folder = Path(scratch)
        migrations = [list(one) for one in MigrationRecorder(connection).applied_migrations()]
        if not migrations:
            raise BackupError("there is no database to back up here yet")
        columns: dict[str, list[str]] = {}
        if connection.vendor == "sqlite":
            rows = copy_file(Path(connection.settings_dict["NAME"]), folder)
        else:
            rows, columns = copy_tables(folder)
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
    with _scratch_beside(target) as scratch:
        written = unpack(target, Path(scratch))
        if written.vendor == "sqlite":
            whole_rows(Path(scratch) / DATABASE_FILE)
    return written


def _scratch_beside(target: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=target.parent, prefix=".helexa-backup-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    manifest: Manifest
    settings: Path
    kept: Path | None
    """The previous database."""


def restore(config: Config, source: Path, *, replace: bool) -> Restored:
    """Replaces the database last but its key: a failed restore leaves it as it was. Raises
    ``BackupError``, ``django.db.Error``."""
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
            _migrate_file(folder / DATABASE_FILE, database, replace=replace)
        else:
            ensure_empty()
            load_tables(folder, manifest)
            call_command("migrate", verbosity=0, interactive=False)
        restore_files(config, folder)
        settings = restore_settings(config, folder)
        if manifest.vendor == "sqlite":
            kept = put_in_place(folder, database)
        restore_key(config, folder)
    return Restored(manifest=manifest, settings=settings, kept=kept)


def _migrate_file(restored: Path, database: Path, *, replace: bool) -> None:
    whole_rows(restored)
    if has_rows(database) and not replace:
        raise BackupError(f"{database} is there already: --replace puts it aside")
    connection.close()
    connection.settings_dict["NAME"] = str(restored)
    call_command("migrate", verbosity=0, interactive=False)
    connection.close()
    connection.settings_dict["NAME"] = str(database)


def check(source: Path) -> None:
    """Restores into a scratch directory. Raises ``BackupError``."""
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
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (data_dir / LOCK_FILE).open("a") as file:
        if not try_lock(file):
            raise BackupError(f"{program()} serve runs on {data_dir}: stop it first")
        yield


def pack(folder: Path, manifest: Manifest, target: Path) -> None:
    files = {
        path.relative_to(folder).as_posix(): _sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest_json = json.dumps(asdict(manifest) | {"files": files}, indent=2)
    (folder / MANIFEST).write_text(manifest_json)
    with (
        written_whole(target) as file,
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar,
    ):
        for name in (MANIFEST, *files):
            tar.add(folder / name, arcname=name, filter=_without_owner)


def extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Raises ``tarfile.TarError`` before extracting anything where a member is no file or folder
    below ``folder``. ``filter="data"`` does so since Python 3.11.4; Debian 12 has 3.11.2."""
    root = folder.resolve()
    for member in tar.getmembers():
        is_below = (root / member.name).resolve().is_relative_to(root)
        if not is_below or not (member.isreg() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is no file below the archive's folder")
    tar.extraction_filter = getattr(tarfile, "data_filter", None)
    tar.extractall(root)


def unpack(source: Path, folder: Path) -> Manifest:
    """Raises ``BackupError`` where something is missing, was changed, or has an unknown format."""
    try:
        with tarfile.open(source, "r:gz") as tar:
            extract(tar, folder)
        fields: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise BackupError(f"{source} cannot be unpacked in {folder.parent}: {error}") from error
        raise BackupError(f"{source} is no backup that can be read: {error}") from error
    if fields.get("format") != FORMAT:
        raise BackupError(
            f"{source} is of format {fields.get('format')}, and this helexa reads {FORMAT}"
        )
    manifest = Manifest(**fields)
    for name, digest in manifest.files.items():
        path = folder / name
        if not path.is_file() or _sha256(path) != digest:
            raise BackupError(f"{source} is damaged: {name} is not what was backed up")
    return _without_retired(manifest)


def _without_retired(manifest: Manifest) -> Manifest:
    def is_kept(table: str) -> bool:
        return not any(table.startswith(f"{app}_") for app in RETIRED_APPS)

    return replace(
        manifest,
        migrations=[one for one in manifest.migrations if one[0] not in RETIRED_APPS],
        rows={table: count for table, count in manifest.rows.items() if is_kept(table)},
        columns={table: names for table, names in manifest.columns.items() if is_kept(table)},
    )


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
