"""Is there room on the disk for a download? Asked before it starts, and while it runs."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from inference.protocol.load_errors import DiskFullError, DownloadFailedError, LoadError

RESERVE_BYTES = 64 * 1024**2
"""Left for everybody else on that disk: logs, the database."""


def free_disk_bytes(directory: Path) -> int:
    """Free bytes on the disk that ``directory`` is on or will be."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def check_disk(directory: Path, missing_bytes: int, what: str) -> None:
    """``missing_bytes``: still to be written. Raises ``DiskFullError`` with both numbers."""
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
    """What the system refused while files were written there, in words for operators."""
    if is_disk_full(error):
        return DiskFullError(f"the disk of {directory} was full: {error}")
    return DownloadFailedError(f"{directory} cannot be written: {error}")
