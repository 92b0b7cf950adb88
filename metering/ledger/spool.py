"""Keeps each billed request in a file, from its submission until the database has its bill.

    submitted ── begin ──▶ a slot: the bill that it gets if this gateway dies now
    tokens    ── count ──▶ the slot's numbers
    ended     ── settle ─▶ a slot: the bill ── the database has it ─▶ freed
    files of gateways that died ── adopt ─▶ the writer ─────────────▶ deleted

Bills of a dead gateway are settled only by this. A stopped process keeps its file locked, so nobody
else settles requests that it may still answer. A bill that is written twice is one entry of the
ledger: entries are unique by request.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inference.logs import ThrottledLog
from metering.ledger.entries import Settle
from metering.ledger.spool_files import SpoolFile, spool_paths

logger = logging.getLogger(__name__)

SPOOL_DIRECTORY = "ledger-spool"

Count = Callable[[int, int, int, int], None]
"""Takes the tokens so far, in the order of ``entries.TOKENS``."""
Written = Callable[[], None]
"""To be called when the database has a bill."""


def count_nothing(*_tokens: int) -> None:
    """The ``Count`` of a request without a file."""


@dataclass(slots=True, eq=False)
class _Bill:
    settle: Settle
    slot: int | None


class Spool:
    """``begin``, its ``Count`` and ``settle`` are for the event loop, ``depth`` and ``problem`` for
    any thread, the rest for the writer's."""

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
        self._open: dict[str, int] = {}
        self._bills: set[_Bill] = set()
        """Bills that the database may not have yet."""
        self._adopted: dict[SpoolFile, int] = {}
        """The number of unwritten bills of each file of a dead gateway."""
        self._log = ThrottledLog(logger, logging.ERROR)
        self.problem: str | None = None
        """Why bills are missing on the disk, in words."""

    def create(self) -> None:
        """Makes this gateway's file, if there is none."""
        if self._file is None:
            try:
                self._file = SpoolFile.create(self._directory, self._gateway_id)
            except OSError as error:
                self._failed(error)

    @property
    def depth(self) -> int:
        return len(self._bills) + sum(list(self._adopted.values()))

    def begin(self, settle: Settle) -> Count:
        """The request is submitted, perhaps again: ``settle`` is its bill if this process dies now,
        without further tokens."""
        slot = self._write(settle)
        self._end(settle.request_id)
        if slot is None:
            return count_nothing
        self._open[settle.request_id] = slot
        return partial(self._count, settle.request_id, slot)

    def settle(self, settle: Settle) -> Written:
        bill = _Bill(settle, self._write(settle))
        self._bills.add(bill)
        self._end(settle.request_id)
        return partial(self._written, bill)

    def keep(self) -> None:
        """The database is offline: syncs its bills to the disk, against a host that dies, and
        writes those that the disk has refused."""
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
        """The bills of a gateway that died, and whom to notify of each; none of one that lives."""
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
        except (OSError, ValueError) as error:
            self._free.append(slot)
            if isinstance(error, OSError):
                self._failed(error)
            else:
                self._log.log("bill", f"no file takes the bill of {settle.request_id}: {error}")
            return None
        self.problem = None
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
        self.problem = f"bills cannot be written to {self._directory}: {reason}"
        self._log.log("write", f"{self.problem}; they are lost if this gateway ends now")
