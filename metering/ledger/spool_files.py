"""Files of bills, one a gateway process, which locks it.

    <data directory>/ledger-spool/<gateway id>.bills     slots of 8 KiB
    <data directory>/ledger-spool/<gateway id>.damaged   kept for people: bills that cannot be read

    slot   4 numbers of 8 bytes      tokens that have come, of a request that has not ended
           length, CRC-32            0, 0: the slot is free
           the bill, msgpack

The kernel frees the lock of a process that dies: the process that then locks the file has adopted
it. Writes survive the process' death without a sync. Must not know the database.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from metering.ledger.entries import GATEWAY_LOST, TOKENS, Settle

logger = logging.getLogger(__name__)

SUFFIX, DAMAGED_SUFFIX = ".bills", ".damaged"
LINES_SUFFIX = ".jsonl"
"""Files of helexa 0.2.0: a line a bill, its CRC-32 and JSON."""
SLOT_BYTES = 8192
_TOKENS = struct.Struct("<4Q")
_HEAD = struct.Struct("<II")
_PREFIX_BYTES = _TOKENS.size + _HEAD.size


class SpoolFile:
    """A file locked by this process. Methods raise ``OSError``. Each slot has one writer at a
    time."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._is_damaged = False

    @classmethod
    def create(cls, directory: Path, name: str) -> SpoolFile:
        """Locks the file before it gets its name, so that no process adopts it in between."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        unnamed = directory / f".{name}{SUFFIX}"
        fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
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
            fd = os.open(path, os.O_RDWR)
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

    def write(self, slot: int, settle: Settle) -> None:
        """Writes a bill to a free slot. Raises ``ValueError`` too, for a bill too large."""
        try:
            bill = _encode(settle)
        except OverflowError as error:
            raise ValueError(str(error)) from error
        if _PREFIX_BYTES + len(bill) > SLOT_BYTES:
            raise ValueError(f"a bill of {len(bill)} bytes")
        data = _TOKENS.pack(0, 0, 0, 0) + _HEAD.pack(len(bill), zlib.crc32(bill)) + bill
        if os.pwrite(self._fd, data, slot * SLOT_BYTES) < len(data):
            raise OSError("the disk took a part of it")

    def count(self, slot: int, *tokens: int) -> None:
        os.pwrite(self._fd, _TOKENS.pack(*tokens), slot * SLOT_BYTES)

    def free(self, slot: int) -> None:
        os.pwrite(self._fd, _HEAD.pack(0, 0), slot * SLOT_BYTES + _TOKENS.size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def read(self) -> list[Settle]:
        """The readable bills in it; others are logged. An open request's has the tokens counted
        when the file was last written."""
        settles: dict[str, Settle] = {}
        num_damaged = 0
        for settle in self._bills():
            if settle is None:
                num_damaged += 1
            # A request that was just ending has two.
            elif settle.outcome != GATEWAY_LOST or settle.request_id not in settles:
                settles[settle.request_id] = settle
        if num_damaged:
            self._is_damaged = True
            logger.error("%s: %d bills cannot be read; the file is kept", self.path, num_damaged)
        return list(settles.values())

    def _bills(self) -> Iterator[Settle | None]:
        if self.path.suffix == LINES_SUFFIX:
            yield from map(_bill_of_line, self.path.read_bytes().split(b"\n")[:-1])
            return
        written_s = os.fstat(self._fd).st_mtime
        with self.path.open("rb") as file:
            while len(slot := file.read(SLOT_BYTES)) > _PREFIX_BYTES:
                length, check = _HEAD.unpack_from(slot, _TOKENS.size)
                bill = slot[_PREFIX_BYTES : _PREFIX_BYTES + length]
                if not length:
                    continue
                if zlib.crc32(bill) != check:
                    yield None
                    continue
                try:
                    settle = _decode(bill)
                except msgspec.DecodeError:
                    yield None
                    continue
                is_open = settle.outcome == GATEWAY_LOST
                yield _as_counted(settle, slot, written_s) if is_open else settle

    def remove(self) -> None:
        """Deletes the file, whose bills the database has; a damaged one is renamed instead."""
        if self._is_damaged:
            self.path.rename(self.path.with_suffix(DAMAGED_SUFFIX))
        else:
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def spool_paths(directory: Path) -> Iterator[Path]:
    """The files there, oldest name first; none without the directory."""
    paths = (path for suffix in (SUFFIX, LINES_SUFFIX) for path in directory.glob(f"[!.]*{suffix}"))
    return iter(sorted(paths))


def _as_counted(settle: Settle, slot: bytes, died_unix_s: float) -> Settle:
    ended_s = max(settle.ended_unix_s, died_unix_s)
    return replace(
        settle,
        **dict(zip(TOKENS, _TOKENS.unpack_from(slot), strict=True)),
        ended_unix_s=ended_s,
        duration_ms=settle.duration_ms + round(1000 * (ended_s - settle.ended_unix_s)),
    )


def _bill_of_line(line: bytes) -> Settle | None:
    check, _, text = line.partition(b" ")
    if check != b"%08x" % zlib.crc32(text):
        return None
    try:
        return msgspec.convert(json.loads(text), Settle)
    except ValueError:  # a ValidationError is one
        return None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Settle).decode


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
