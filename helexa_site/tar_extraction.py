"""Extracts tar archives, on every Python that helexa runs on."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Extracts files, folders and links that stay below ``folder``. Raises ``tarfile.TarError`` for
    an archive with anything else, of which nothing is extracted.

    ``filter="data"`` does as much since Python 3.11.4; Debian 12 has 3.11.2.
    """
    root = folder.resolve()
    members = tar.getmembers()
    for member in members:
        if not _stays_below(root, member):
            raise tarfile.TarError(f"{member.name!r} is no file below the archive's folder")
    tar.extraction_filter = getattr(tarfile, "data_filter", None)
    tar.extractall(root, members)


def _stays_below(root: Path, member: tarfile.TarInfo) -> bool:
    path = (root / member.name).resolve()
    if not path.is_relative_to(root):
        return False
    if member.issym():
        return (path.parent / member.linkname).resolve().is_relative_to(root)
    return member.isreg() or member.isdir()
