"""Wheels whose download has not ended: where they lie, and one process at a time on each.

<cache>/pypi/.unfinished-<package>/     what ``pip_child`` writes, and the lock of its parent
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

PREFIX = ".unfinished-"
LOCK = ".lock"


class UnfinishedWheel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_bytes: int = 0
    """Size of the whole wheel; 0 where the index does not report it."""


_decode = msgspec.json.Decoder(UnfinishedWheel).decode


def unfinished_directory(package_dir: Path) -> Path:
    return package_dir.with_name(PREFIX + package_dir.name)


def unfinished_wheel(directory: Path) -> UnfinishedWheel | None:
    """``None``: no index has named the wheel yet."""
    try:
        return _decode((directory / "wheel.json").read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def unfinished_wheel_bytes(directory: Path, wheel: UnfinishedWheel) -> int:
    """How many bytes of the wheel are on the disk."""
    names = (wheel.name, f"{wheel.name}.incomplete")
    return sum(path.stat().st_size for name in names if (path := directory / name).is_file())


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Makes the directory, and waits while another process is in it. It may be removed inside."""
    while True:
        directory.mkdir(exist_ok=True)
        with (directory / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_of(directory, lock.fileno()):
                yield
                return


def is_being_downloaded(directory: Path) -> bool:
    try:
        with (directory / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def _is_of(directory: Path, lock_fd: int) -> bool:
    """Whether the lock is still the directory's: the process before may have removed it."""
    try:
        return os.path.samestat(os.fstat(lock_fd), (directory / LOCK).stat())
    except FileNotFoundError:
        return False
