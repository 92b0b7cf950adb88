"""The files that a download still lacks. They make a cached model partial.

    <repository>/pending/<commit>.json     {file name: {"num_bytes": …, "etag": …}}

Entries are written before the first byte, and removed as files become complete. Files of other
quants of the same commit have no entry unless they were asked for. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from inference.loading.sources.resumed import INCOMPLETE


class PendingFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    num_bytes: int
    etag: str = ""
    """Names its blob; empty where the hub's listing has none."""


Pending = Mapping[str, PendingFile]
_decode = msgspec.json.Decoder(dict[str, PendingFile]).decode


def pending_add(repository: Path, commit: str, files: Pending) -> None:
    _write(repository, commit, {**pending_of(repository, commit), **files})


def pending_remove(repository: Path, commit: str, names: Collection[str]) -> None:
    left = {
        name: file for name, file in pending_of(repository, commit).items() if name not in names
    }
    _write(repository, commit, left)


def pending_of(repository: Path, commit: str) -> dict[str, PendingFile]:
    """Those that are not there yet; empty where nothing is known of a download."""
    try:
        files = _decode(_path(repository, commit).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    snapshot = repository / "snapshots" / commit
    return {name: file for name, file in files.items() if not (snapshot / name).exists()}


def pending_commits(repository: Path) -> list[str]:
    return sorted(path.stem for path in (repository / "pending").glob("*.json"))


def pending_blobs(repository: Path) -> set[str]:
    """Names of the partial files that the next download of something pending continues."""
    return {
        file.etag + INCOMPLETE
        for commit in pending_commits(repository)
        for file in pending_of(repository, commit).values()
        if file.etag
    }


def _write(repository: Path, commit: str, files: Pending) -> None:
    path = _path(repository, commit)
    if not files:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(files))
    written.replace(path)


def _path(repository: Path, commit: str) -> Path:
    return repository / "pending" / f"{commit}.json"
