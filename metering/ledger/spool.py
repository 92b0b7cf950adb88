"""Keeps each billed request in a file, from its submission until the database has its bill.

    submitted ── begin ──▶ a slot: the bill that it gets if this gateway dies now
    tokens    ── count ──▶ the slot's numbers, every ``writer.COUNT_EVERY_S``
    ended     ── settle ─▶ the same slot: the bill ── the database has it ─▶ freed
    files of gateways that died ── adopt ─▶ the writer ─────────────▶ deleted

Bills of a dead gateway are settled only by this. A bill that is written twice is one entry of the
ledger: entries are unique by request. Each gateway process has one file, which it locks:

    <data directory>/ledger-spool/<gateway id>.bills     slots of 8 KiB
    <data directory>/ledger-spool/<gateway id>.damaged   kept for people: bills that cannot be read

    slot   4 numbers of 8 bytes      tokens that have come, of a request that has not ended
           length, CRC-32            0, 0: the slot is free
           the bill, msgpack

The kernel frees the lock of a process that dies: the process that then locks the file has adopted
it. A stopped process keeps its lock, so nobody else settles requests that it may still answer.
Writes survive the process' death without a sync. Must not know the database.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from inference.logs import ThrottledLog
from metering.ledger.entries import GATEWAY_LOST, TOKENS, Settle

logger = logging.getLogger(__name__)

SPOOL_DIRECTORY = "ledger-spool"
SUFFIX, DAMAGED_SUFFIX = ".bills", ".damaged"
LINES_SUFFIX = ".jsonl"
"""Files of helexa 0.2.0: a line a bill, its CRC-32 and JSON."""
SLOT_BYTES = 8192
_TOKENS = struct.Struct("<4Q")
_HEAD = struct.Struct("<II")
_PREFIX_BYTES = _TOKENS.size + _HEAD.size

Tokens = tuple[int, int, int, int]
"""In the order of ``entries.TOKENS``."""
Written = Callable[[], None]


class SpoolFile:
    """Locked by this process. Methods raise ``OSError``. Each slot has one writer at a time."""

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
        """``slot`` is free, or the request's own. Raises ``ValueError`` too, for a bill that is too
        large."""
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
        """Logs unreadable bills. An open request's has the tokens counted at the last write."""
        bills = list(self._bills())
        settles = [bill for bill in bills if bill is not None]
        if num_damaged := len(bills) - len(settles):
            self._is_damaged = True
            logger.error("%s: %d bills cannot be read; the file is kept", self.path, num_damaged)
        return settles

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
        if self._is_damaged:
            self.path.rename(self.path.with_suffix(DAMAGED_SUFFIX))
        else:
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def spool_paths(directory: Path) -> Iterator[Path]:
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


@dataclass(slots=True, eq=False)
class _Bill:
    settle: Settle
    slot: int | None


@dataclass(slots=True, eq=False)
class _Open:
    slot: int
    tokens: Callable[[], Tokens]
    written: Tokens = (0, 0, 0, 0)


class Spool:
    """``begin``, ``count`` and ``settle`` are for the event loop, ``depth`` and ``problem`` for any
    thread, the rest for the writer's."""

    def __init__(
        self, directory: Path, gateway_id: str, *, oldest_unix_s: Callable[[], float]
    ) -> None:
        """``oldest_unix_s``: the ledger may have deleted earlier requests, whose bills could be
        charged twice."""
        self._directory = directory
        self._gateway_id = gateway_id
        self._oldest_unix_s = oldest_unix_s
        self._file: SpoolFile | None = None
        self._free: deque[int] = deque()
        self._new_slots = itertools.count()
        self._open: dict[str, _Open] = {}
        self._bills: set[_Bill] = set()
        self._adopted: dict[SpoolFile, int] = {}
        """The number of unwritten bills of each file of a dead gateway."""
        self._log = ThrottledLog(logger, logging.ERROR)
        self.problem: str | None = None

    def create(self) -> None:
        if self._file is None:
            try:
                self._file = SpoolFile.create(self._directory, self._gateway_id)
            except OSError as error:
                self._failed(error)

    @property
    def depth(self) -> int:
        return len(self._bills) + sum(list(self._adopted.values()))

    def begin(self, settle: Settle, tokens: Callable[[], Tokens]) -> None:
        """``settle``: its bill if this process dies now, without further tokens. ``tokens``: those
        so far. Replaces the request's earlier attempt."""
        slot = self._write(settle, self._slot_of(settle.request_id))
        if slot is not None:
            self._open[settle.request_id] = _Open(slot, tokens)

    def count(self) -> bool:
        """Writes the tokens of open requests. Returns whether there are such."""
        for request in list(self._open.values()):
            tokens = request.tokens()
            if tokens != request.written and self._file is not None:
                try:
                    self._file.count(request.slot, *tokens)
                except OSError as error:
                    self._failed(error)
                    break
                request.written = tokens
        return bool(self._open) and self._file is not None

    def settle(self, settle: Settle) -> Written:
        bill = _Bill(settle, self._write(settle, self._slot_of(settle.request_id)))
        self._bills.add(bill)
        return partial(self._written, bill)

    def keep(self) -> None:
        """The database is offline: syncs its bills to the disk, against a host that dies."""
        for bill in list(self._bills):
            if bill.slot is None:
                bill.slot = self._write(bill.settle)
                if self.problem is not None:
                    return
        if self._file is not None and self._bills:
            try:
                self._file.sync()
            except OSError as error:
                self._failed(error)

    def files(self) -> Iterator[Path]:
        return spool_paths(self._directory)

    def adopt(self, path: Path) -> list[tuple[Settle, Written]]:
        """The bills of a gateway that died; none of one that lives."""
        try:
            file = SpoolFile.adopt(path)
            if file is None:
                return []
            try:
                settles = file.read()
            except OSError:
                file.close()
                raise
        except OSError as error:
            self._log.log(str(path), f"the bills in {path} cannot be read: {error.strerror}")
            return []
        oldest_unix_s = self._oldest_unix_s()
        bills = [settle for settle in settles if settle.ended_unix_s >= oldest_unix_s]
        if num_too_old := len(settles) - len(bills):
            logger.error(
                "%s: %d bills are older than the ledger's retention and are not written",
                path,
                num_too_old,
            )
        logger.warning("%s: %d bills of a gateway that died", path, len(bills))
        self._adopted[file] = len(bills) + 1
        written = partial(self._adopted_written, file)
        written()
        return [(settle, written) for settle in bills]

    def close(self) -> None:
        """Leaves unwritten bills to the next process."""
        self.count()
        file, self._file = self._file, None
        for adopted in self._adopted:
            adopted.close()
        if file is None:
            return
        if self._bills or self._open:
            file.close()
        else:
            self._remove(file)

    def _written(self, bill: _Bill) -> None:
        self._bills.discard(bill)
        if bill.slot is not None:
            self._free_slot(bill.slot)

    def _adopted_written(self, file: SpoolFile) -> None:
        self._adopted[file] -= 1
        if not self._adopted[file]:
            del self._adopted[file]
            self._remove(file)

    def _remove(self, file: SpoolFile) -> None:
        try:
            file.remove()
        except OSError as error:
            logger.warning("%s cannot be deleted: %s", file.path, error.strerror)

    def _write(self, settle: Settle, slot: int | None = None) -> int | None:
        """``slot``: that of the same request; ``None``: a free one."""
        if self._file is None:
            return None
        if slot is None:
            try:
                slot = self._free.popleft()
            except IndexError:
                slot = next(self._new_slots)
        try:
            self._file.write(slot, settle)
        except (OSError, ValueError) as error:
            self._free_slot(slot)
            if isinstance(error, OSError):
                self._failed(error)
            else:
                self._log.log("bill", f"no file takes the bill of {settle.request_id}: {error}")
            return None
        self.problem = None
        return slot

    def _slot_of(self, request_id: str) -> int | None:
        ended = self._open.pop(request_id, None)
        return None if ended is None else ended.slot

    def _free_slot(self, slot: int) -> None:
        if self._file is not None:
            try:
                self._file.free(slot)
            except OSError as error:
                self._failed(error)
        self._free.append(slot)

    def _failed(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        self.problem = f"bills cannot be written to {self._directory}: {reason}"
        self._log.log("write", f"{self.problem}; they are lost if this gateway ends now")
