"""The archive: a gzipped tar with ``manifest.json`` first, and a checksum of every file."""

from __future__ import annotations

import errno
import hashlib
import json
import tarfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from helexa_site.whole_file import written_whole

FORMAT = 1
MANIFEST = "manifest.json"
RETIRED_APPS = frozenset({"axes"})
"""Apps of earlier releases. Databases keep their tables and records of their migrations, and a
restored one does without them."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    """``sqlite`` or ``postgresql``."""
    migrations: list[list[str]]
    """App and name of each migration in the database."""
    rows: dict[str, int]
    columns: dict[str, list[str]] = field(default_factory=dict)
    """Columns of each table in the order of the copy; PostgreSQL only."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 by path."""


def pack(folder: Path, manifest: Manifest, target: Path) -> None:
    """Packs everything below ``folder`` into ``target``, atomically."""
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
    """Extracts files and folders. Raises ``tarfile.TarError`` for an archive with anything else, or
    outside ``folder``, of which nothing is extracted.

    ``filter="data"`` does as much since Python 3.11.4; Debian 12 has 3.11.2.
    """
    root = folder.resolve()
    for member in tar.getmembers():
        is_below = (root / member.name).resolve().is_relative_to(root)
        if not is_below or not (member.isreg() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is no file below the archive's folder")
    tar.extraction_filter = getattr(tarfile, "data_filter", None)
    tar.extractall(root)


def unpack(source: Path, folder: Path) -> Manifest:
    """Extracts into ``folder``. Raises ``BackupError`` where something is missing, was changed, or
    has an unknown format."""
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
