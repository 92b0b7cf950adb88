"""Files of bills that the database does not have yet: one a gateway process, which locks it.

    <data directory>/ledger-spool/<gateway id>.jsonl     a line a bill: CRC-32, then JSON
    <data directory>/ledger-spool/<gateway id>.damaged   kept for people: lines that cannot be read

The kernel frees the lock of a process that dies, however it dies: the process that then locks the
file has adopted it. Must not know the database.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from metering.ledger.entries import Settle

logger = logging.getLogger(__name__)

SUFFIX, DAMAGED_SUFFIX = ".jsonl", ".damaged"
NUM_CHECK_BYTES = 9
"""Eight hexadecimal digits and a space."""


class SpoolFile:
    """A file that this process has locked. Belongs to one thread. Methods raise ``OSError``."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._is_damaged = False

    @classmethod
    def create(cls, directory: Path, name: str) -> SpoolFile:
        """It gets its name when it is locked, so that no process adopts it in between."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        unnamed = directory / f".{name}{SUFFIX}"
        fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = directory / f"{name}{SUFFIX}"
            unnamed.rename(path)
            _sync_directory(directory)
        except OSError:
            os.close(fd)
            raise
        return cls(path, fd)

    @classmethod
    def adopt(cls, path: Path) -> SpoolFile | None:
        """``None``: its process lives, or has just removed it."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink > 0:
                return cls(path, fd)
        except BlockingIOError:
            pass
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def append(self, settles: Sequence[Settle]) -> None:
        """Returns when they are on the disk. Where that fails none of them is in the file."""
        data = memoryview(b"".join(map(_line_of, settles)))
        size = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, size)
            raise

    def read(self) -> list[Settle]:
        """The bills in it, without those that cannot be read: these are logged."""
        complete, newline, torn = self.path.read_bytes().rpartition(b"\n")
        settles, num_damaged = [], 0
        for line in complete.split(b"\n") if newline else ():
            try:
                settles.append(_settle_of(line))
            except ValueError:
                num_damaged += 1
        if torn:
            logger.warning("%s: its gateway died while it wrote the last bill", self.path)
        if num_damaged:
            self._is_damaged = True
            logger.error("%s: %d bills cannot be read; the file is kept", self.path, num_damaged)
        return settles

    def remove(self) -> None:
        """Deletes the file, whose bills the database has; a damaged one is renamed instead."""
        if self._is_damaged:
            self.path.rename(self.path.with_suffix(DAMAGED_SUFFIX))
        else:
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leaves it to the next process."""
        os.close(self._fd)


def spool_paths(directory: Path) -> Iterator[Path]:
    """The files there, oldest name first; none where there is no directory."""
    return iter(sorted(directory.glob(f"[!.]*{SUFFIX}")))


def _line_of(settle: Settle) -> bytes:
    text = json.dumps(dataclasses.asdict(settle)).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _settle_of(line: bytes) -> Settle:
    """Raises ``ValueError``."""
    check, text = line[:NUM_CHECK_BYTES], line[NUM_CHECK_BYTES:]
    if check != b"%08x " % zlib.crc32(text):
        raise ValueError("its checksum is another")
    return msgspec.convert(json.loads(text), Settle)  # a ValidationError is a ValueError


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
