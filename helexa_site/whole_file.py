"""Writes files atomically, even if the process or the machine dies meanwhile, and locks them. A
failure leaves the old file as it was, and nothing beside it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

OWNER_ALONE = 0o600


def write_whole(path: Path, text: str, *, mode: int = OWNER_ALONE) -> None:
    """Raises ``OSError``."""
    with written_whole(path, mode=mode) as file:
        file.write(text.encode())


@contextmanager
def written_whole(path: Path, *, mode: int = OWNER_ALONE) -> Iterator[BinaryIO]:
    """Replaces ``path`` where the block ends without an exception. Raises ``OSError``."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def keep_once(path: Path, text: str) -> None:
    """Writes a missing ``path`` once, however many processes start together. Raises ``OSError``."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)


def try_lock(file: int | IO[Any]) -> bool:
    """Whether this process holds the lock of the open file now; closing the file releases it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
