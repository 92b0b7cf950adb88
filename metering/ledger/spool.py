"""Keeps each billed request in a file, from its submission until the database has its bill.

    submitted ── begin ──▶ a slot: the bill that it gets if this gateway dies now
    tokens    ── count ──▶ the slot's numbers
    ended     ── settle ─▶ a slot: the bill ── the database has it ─▶ freed, within INTERVAL_S
    files of gateways that died ─▶ resubmitted to the writer ────────▶ deleted

Bills of a dead gateway are settled only by this. A stopped process keeps its file locked, so nobody
else settles requests that it may still answer. A bill that is written twice is one entry of the
ledger: entries are unique by request.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from inference.logs.throttled import ThrottledLog
from inference.supervised_threads import SupervisedThread
from metering.ledger.entries import Settle
from metering.ledger.pending_writes import PendingWrite
from metering.ledger.spool_files import SpoolFile, spool_paths

logger = logging.getLogger(__name__)

SPOOL_DIRECTORY = "ledger-spool"
SPOOL_AFTER_S = 5.0
"""A bill that is not in the database by then is synced to the disk, against a host that dies, and
reported."""
INTERVAL_S = 1.0
ADOPT_EVERY_S = 2.0

Count = Callable[[int, int, int, int], None]
"""Takes the tokens so far, in the order of ``entries.TOKENS``."""


def count_nothing(*_tokens: int) -> None:
    """The ``Count`` of a request without a file."""


@dataclass(slots=True)
class _Bill:
    write: PendingWrite
    slot: int | None


@dataclass(slots=True)
class _Adopted:
    file: SpoolFile
    writes: deque[PendingWrite] = field(default_factory=deque)


class Spool:
    """``begin``, its ``Count`` and ``settle`` are for one thread, ``depth`` and ``problem`` for
    any. The rest belongs to the spool's thread, between ``start`` and ``stop``."""

    def __init__(
        self,
        directory: Path,
        gateway_id: str,
        *,
        resubmit: Callable[[PendingWrite], object],
        oldest_unix_s: Callable[[], float],
        has_room: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``oldest_unix_s``: the ledger may have deleted earlier requests, whose bills could be
        charged twice. ``has_room``: whether the writer accepts more."""
        self._directory = directory
        self._gateway_id = gateway_id
        self._resubmit = resubmit
        self._oldest_unix_s = oldest_unix_s
        self._has_room = has_room
        self._clock = clock
        self._file: SpoolFile | None = None
        self._free: deque[int] = deque()
        self._new_slots = itertools.count()
        self._open: dict[str, int] = {}
        self._bills: deque[_Bill] = deque()
        """Bills that the database may not have yet, oldest first."""
        self._num_late = 0
        self._is_synced = True
        self._adopted: list[_Adopted] = []
        self._adopt_due_s = float("-inf")
        self._problem: str | None = None
        self._log = ThrottledLog(logger, logging.ERROR, clock=clock)
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._run, name="ledger spool")

    def start(self) -> None:
        self._create()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Leaves unwritten bills to the next process. Blocks."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def begin(self, settle: Settle) -> Count:
        """The request is submitted, perhaps again: ``settle`` is its bill if this process dies now,
        without further tokens."""
        slot = self._write(settle)
        self._end(settle.request_id)
        if slot is None:
            return count_nothing
        self._open[settle.request_id] = slot
        return partial(self._count, settle.request_id, slot)

    def settle(self, write: PendingWrite, settle: Settle) -> None:
        self._bills.append(_Bill(write, self._write(settle)))
        self._is_synced = False
        self._end(settle.request_id)

    @property
    def depth(self) -> int:
        return self._num_late + sum(len(one.writes) for one in self._adopted)

    @property
    def problem(self) -> str | None:
        """Why bills are missing on the disk, in words."""
        return self._problem

    def _count(self, request_id: str, slot: int, *tokens: int) -> None:
        """Ignores an attempt that has ended, or that another one has followed."""
        if self._file is not None and self._open.get(request_id) == slot:
            try:
                self._file.count(slot, *tokens)
            except OSError as error:
                self._failed(error)

    def _write(self, settle: Settle) -> int | None:
        if self._file is None:
            return None
        try:
            slot = self._free.popleft()
        except IndexError:
            slot = next(self._new_slots)
        try:
            self._file.write(slot, settle)
        except OSError as error:
            self._free.append(slot)
            self._failed(error)
            return None
        except ValueError as error:
            self._free.append(slot)
            self._log.log("bill", f"request {settle.request_id}: no file takes its bill: {error}")
            return None
        self._problem = None
        return slot

    def _end(self, request_id: str) -> None:
        slot = self._open.pop(request_id, None)
        if slot is not None:
            self._free_slot(slot)

    def _free_slot(self, slot: int) -> None:
        if self._file is not None:
            try:
                self._file.free(slot)
            except OSError as error:
                self._failed(error)
        self._free.append(slot)

    def _failed(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        self._problem = f"bills cannot be written to {self._directory}: {reason}"
        self._log.log("write", f"{self._problem}; they are lost if this gateway ends now")

    def _create(self) -> None:
        try:
            self._file = SpoolFile.create(self._directory, self._gateway_id)
        except OSError as error:
            self._failed(error)

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            self.tick()
        self._forget_written()
        self._keep(self._clock())
        self._close()

    def tick(self) -> None:
        if self._file is None:
            self._create()
        self._forget_written()
        self._keep(self._clock() - SPOOL_AFTER_S)
        if self._clock() >= self._adopt_due_s:
            self._adopt_due_s = self._clock() + ADOPT_EVERY_S
            self._adopt()

    def _forget_written(self) -> None:
        while self._bills and self._bills[0].write.is_written:
            slot = self._bills.popleft().slot
            if slot is not None:
                self._free_slot(slot)
        for adopted in list(self._adopted):
            while adopted.writes and adopted.writes[0].is_written:
                adopted.writes.popleft()
            if not adopted.writes:
                self._remove(adopted)

    def _remove(self, adopted: _Adopted) -> None:
        try:
            adopted.file.remove()
        except OSError as error:
            path = str(adopted.file.path)
            self._log.log(path, f"{path} cannot be deleted: {error.strerror}")
            return
        self._adopted.remove(adopted)
        logger.info("%s: all of its bills are in the database", adopted.file.path)

    def _keep(self, queued_before_s: float) -> None:
        """Syncs the bills that were queued before then, and writes those without a slot."""
        num_late = 0
        for number in range(len(self._bills)):
            bill = self._bills[number]
            if bill.write.queued_s > queued_before_s:
                break
            num_late += 1
            operation = bill.write.operation
            if bill.slot is None and isinstance(operation, Settle) and not bill.write.is_written:
                bill.slot = self._write(operation)
                if self._problem is not None:
                    break
        if num_late and not self._num_late:
            logger.warning("the database does not take bills: they are kept in %s", self._directory)
        self._num_late = num_late
        if num_late and not self._is_synced and self._file is not None:
            self._is_synced = True
            try:
                self._file.sync()
            except OSError as error:
                self._failed(error)

    def _close(self) -> None:
        file, self._file = self._file, None
        for adopted in self._adopted:
            adopted.file.close()
        if file is None:
            return
        if self._bills or self._open:
            file.close()
            return
        try:
            file.remove()
        except OSError as error:
            logger.warning("%s cannot be deleted: %s", file.path, error.strerror)

    def _adopt(self) -> None:
        for path in spool_paths(self._directory):
            if not self._has_room():
                return
            try:
                if (file := SpoolFile.adopt(path)) is not None:
                    self._resubmit_all(file)
            except OSError as error:
                self._log.log(str(path), f"the bills in {path} cannot be read: {error.strerror}")

    def _resubmit_all(self, file: SpoolFile) -> None:
        adopted, num_too_old = _Adopted(file), 0
        oldest_unix_s = self._oldest_unix_s()
        self._adopted.append(adopted)
        for settle in file.read():
            if settle.ended_unix_s < oldest_unix_s:
                num_too_old += 1
                continue
            write = PendingWrite(settle, self._clock())
            adopted.writes.append(write)
            self._resubmit(write)
        if adopted.writes:
            logger.warning("%s: %d bills of a gateway that died", file.path, len(adopted.writes))
        if num_too_old:
            logger.error(
                "%s: %d bills are older than the ledger's retention and are not written",
                file.path,
                num_too_old,
            )
