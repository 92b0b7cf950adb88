"""Keeps bills on the disk while the database does not take them, and reads them back.

    event loop ── settle ─▶ add ─┬─ written within SPOOL_AFTER_S: forgotten, the disk is not touched
                                 └─ else ─▶ this gateway's file ─▶ deleted once all is written
    files of gateways that died ─▶ resubmitted to the writer ─────▶ the same

A bill that is written twice is one entry of the ledger: entries are unique by request. Younger
bills than ``SPOOL_AFTER_S`` are lost with their gateway, and then neurons report those requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from inference.logs.throttled import ThrottledLog
from inference.supervised_threads import SupervisedThread
from metering.ledger.entries import Settle
from metering.ledger.pending_writes import PendingWrite
from metering.ledger.spool_files import SpoolFile, spool_paths

logger = logging.getLogger(__name__)

SPOOL_DIRECTORY = "ledger-spool"
SPOOL_AFTER_S = 5.0
INTERVAL_S = 1.0
ADOPT_EVERY_S = 30.0
BILLS_PER_WRITE = 5_000


@dataclass(slots=True)
class _Spooled:
    """A file and its bills that are not written yet, oldest first."""

    file: SpoolFile
    writes: deque[PendingWrite] = field(default_factory=deque)


class Spool:
    """``add`` is for any thread, as are ``depth`` and ``problem``. The rest belongs to the
    spool's thread, which ``start`` begins and ``stop`` ends."""

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
        """``oldest_unix_s``: requests that ended before it may have been forgotten by the ledger,
        so their bills could be charged twice. ``has_room``: whether the writer takes more."""
        self._directory = directory
        self._gateway_id = gateway_id
        self._resubmit = resubmit
        self._oldest_unix_s = oldest_unix_s
        self._has_room = has_room
        self._clock = clock
        self._fresh: deque[PendingWrite] = deque()
        """Bills that are neither spooled nor known to be written, oldest first."""
        self._own: _Spooled | None = None
        self._adopted: list[_Spooled] = []
        self._adopt_due_s = float("-inf")
        self._problem: str | None = None
        self._log = ThrottledLog(logger, logging.ERROR, clock=clock)
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._run, name="ledger spool")

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Spools all that is not written. Blocks."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def add(self, write: PendingWrite) -> None:
        """``write`` is a bill that the writer was just given."""
        self._fresh.append(write)

    @property
    def depth(self) -> int:
        """How many bills are on the disk and not in the database."""
        return sum(len(spooled.writes) for spooled in self._files())

    @property
    def problem(self) -> str | None:
        """Why bills are not on the disk that should be, in words."""
        return self._problem

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            self.tick()
        self._forget_written()
        self._spool(self._clock())
        for spooled in self._files():
            spooled.file.close()

    def tick(self) -> None:
        self._forget_written()
        self._spool(self._clock() - SPOOL_AFTER_S)
        if self._clock() >= self._adopt_due_s:
            self._adopt_due_s = self._clock() + ADOPT_EVERY_S
            self._adopt()

    def _files(self) -> list[_Spooled]:
        return [*self._adopted, *([self._own] if self._own is not None else [])]

    def _forget_written(self) -> None:
        while self._fresh and self._fresh[0].is_written:
            self._fresh.popleft()
        for spooled in self._files():
            while spooled.writes and spooled.writes[0].is_written:
                spooled.writes.popleft()
            if not spooled.writes:
                self._remove(spooled)

    def _remove(self, spooled: _Spooled) -> None:
        try:
            spooled.file.remove()
        except OSError as error:
            path = str(spooled.file.path)
            self._log.log(path, f"{path} cannot be deleted: {error.strerror}")
            return
        if spooled is self._own:
            self._own = None
        else:
            self._adopted.remove(spooled)
        logger.info("%s: all of its bills are in the database", spooled.file.path)

    def _spool(self, queued_before_s: float) -> None:
        """Writes the bills that the writer was given before then."""
        while due := list(islice(_due(self._fresh, queued_before_s), BILLS_PER_WRITE)):
            try:
                self._append(due)
            except OSError as error:
                problem = f"bills cannot be written to {self._directory}: {error.strerror}"
                self._problem = problem
                self._log.log("write", f"{problem}; they are lost if this gateway ends now")
                return
            for _ in due:
                self._fresh.popleft()
        self._problem = None

    def _append(self, due: Iterable[PendingWrite]) -> None:
        """Raises ``OSError``; then nothing is appended."""
        bills = [
            (write, write.operation)
            for write in due
            if isinstance(write.operation, Settle) and not write.is_written
        ]
        if not bills:
            return
        if self._own is None:
            self._own = _Spooled(SpoolFile.create(self._directory, self._gateway_id))
            logger.warning(
                "the database does not take bills: they are kept in %s", self._own.file.path
            )
        self._own.file.append([settle for _, settle in bills])
        self._own.writes.extend(write for write, _ in bills)

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
        spooled, num_too_old = _Spooled(file), 0
        oldest_unix_s = self._oldest_unix_s()
        self._adopted.append(spooled)
        for settle in file.read():
            if settle.ended_unix_s < oldest_unix_s:
                num_too_old += 1
                continue
            write = PendingWrite(settle, self._clock())
            spooled.writes.append(write)
            self._resubmit(write)
        logger.warning("%s: %d bills of a gateway that died", file.path, len(spooled.writes))
        if num_too_old:
            logger.error(
                "%s: %d bills are older than the ledger's retention and are not written",
                file.path,
                num_too_old,
            )


def _due(writes: deque[PendingWrite], queued_before_s: float) -> Iterator[PendingWrite]:
    """The writes at the front that were queued before then. Others may be added meanwhile."""
    for number in range(len(writes)):
        if writes[number].queued_s > queued_before_s:
            return
        yield writes[number]
