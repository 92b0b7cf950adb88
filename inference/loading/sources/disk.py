"""Files on the disk: free space, what lies under a folder, and pinned hashes."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from inference.loading.progress import OnProgress
from inference.protocol.load_errors import (
    DiskFullError,
    DownloadFailedError,
    HashMismatchError,
    LoadError,
)
from inference.protocol.load_report import LoadProgress, LoadStage

RESERVE_BYTES = 64 * 1024**2
"""Left for everybody else on that disk: logs, the database."""
CHUNK_BYTES = 256 * 1024 * 1024
"""Bytes read between two progress messages."""
BUFFER_BYTES = 1024 * 1024


def free_disk_bytes(directory: Path) -> int:
    """The directory need not exist yet."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def check_disk(directory: Path, missing_bytes: int, what: str) -> None:
    """Raises ``DiskFullError``."""
    free_bytes = free_disk_bytes(directory)
    if missing_bytes > 0 and missing_bytes + RESERVE_BYTES > free_bytes:
        raise DiskFullError(
            f"{what} needs {missing_bytes / 1e9:.2f} GB more in {directory}, and "
            f"{free_bytes / 1e9:.2f} GB are free there; delete models that nobody uses, or set "
            "HELEXA_DATA_DIR or HF_HOME to a larger disk"
        )


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def unwritten(error: OSError, directory: Path) -> LoadError:
    if is_disk_full(error):
        return DiskFullError(f"the disk of {directory} was full: {error}")
    return DownloadFailedError(f"{directory} cannot be written: {error}")


def bytes_under(directory: Path) -> int:
    return sum(stats.st_size for path, stats in files_under(directory) if not path.is_symlink())


def files_under(directory: Path, *, is_deep: bool = True) -> Iterator[tuple[Path, os.stat_result]]:
    """Sorted within each folder. Leaves out what vanishes meanwhile or cannot be read."""
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            path = Path(folder, name)
            try:
                yield path, path.stat()
            except OSError:
                continue
        if not is_deep:
            return


def check_sha256(path: Path, expected: str, on_progress: OnProgress = lambda _: None) -> None:
    """Reads the whole file, which takes minutes for a large one. Raises ``HashMismatchError``."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with path.open("rb", buffering=0) as file:
        while num_bytes := file.readinto(buffer):
            digest.update(buffer[:num_bytes])
            done += num_bytes
            if done % CHUNK_BYTES < num_bytes:
                on_progress(
                    LoadProgress(
                        stage=LoadStage.PREFLIGHT, done=done, total=total, detail="its sha256"
                    )
                )
    found = digest.hexdigest()
    if found != expected.lower():
        raise HashMismatchError(
            f"{path.name} has the sha256 {found}, the spec pins {expected.lower()}"
        )
