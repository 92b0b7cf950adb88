"""The one thread of a gateway process that writes budgets, reservations, ledger and records.

    event loop                          writer thread, with a database connection of its own
    reserve ─┐                          take all that is queued (metering.ledger.pending_writes)
    narrow  ─┼─▶ queue, in order ─────▶ one transaction         (metering.ledger.store)
    settle  ─┤                          notify all waiters by one call into the loop
    release ─┘                          away? keep it all, wait, try again
    record ─────▶ records of requests, many at once           (metering.request_records)
    begin, settle ─▶ a file of the data directory, until it is written (metering.ledger.spool);
                     files of dead gateways are adopted every ADOPT_EVERY_S

A batch is everything queued while the last one was written. Only a ``Narrow`` and a ``Settle`` wait
for others a while (``DELAYS_S``): nobody waits for them, and a reservation is written after them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from django.db import Error

from inference.backoff import Backoff
from inference.supervised_threads import SupervisedThread
from metering.errors import LedgerUnavailableError
from metering.ledger import store
from metering.ledger.book import output_tokens_granted
from metering.ledger.entries import Granted, Narrow, Operation, Release, Reserve, Settle
from metering.ledger.pending_writes import Outcome, PendingWrite, PendingWrites, Waiter, release_of
from metering.ledger.spool import Spool, Tokens
from metering.request_records import RecordQueue, with_record

if TYPE_CHECKING:
    from inference.gateway.request.outcome import RequestOutcome

logger = logging.getLogger(__name__)

MAX_QUEUED = 200_000
RESERVE_TIMEOUT_S = 3.0
"""With the catalogue's ``READ_WAIT_S`` it is less than the five seconds after which a client gets
the error that the database does not answer."""
DELAYS_S: dict[type, float] = {Narrow: 1.0, Settle: 0.05}
"""A transaction of several bills takes little more than that of one."""
BACKOFF = Backoff(first_s=0.05, max_s=2.0)
ADOPT_EVERY_S = 2.0
COUNT_EVERY_S = 0.05
"""A gateway that dies bills none of the tokens since the last count."""
SPOOLED_AFTER_S = 5.0


class LedgerWriter:
    """Methods are for the event loop that called ``start``, properties for any thread. ``using`` is
    Django's name of the database."""

    def __init__(
        self,
        gateway_id: str,
        *,
        using: str = "default",
        max_queued: int = MAX_QUEUED,
        apply: Callable[..., list[store.Result]] = store.apply,
        spool_directory: Path | None = None,
        oldest_unix_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._max_queued = max_queued
        self._queue: SimpleQueue[PendingWrite | None] = SimpleQueue()
        self.records = RecordQueue(using=using)
        self._pending = PendingWrites(
            gateway_id, using=using, records=self.records, notify=self._notify, apply=apply
        )
        """Used by the thread alone."""
        self._spool = None
        if spool_directory is not None:
            self._spool = Spool(spool_directory, gateway_id, oldest_unix_s=oldest_unix_s)
        self._adopt_due_s = float("inf") if self._spool is None else 0.0
        self._stop_by_s: float | None = None
        self._thread: SupervisedThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_counting = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._spool is not None:
            self._spool.create()
        self._thread = SupervisedThread(self._run, name="ledger")
        self._thread.start()

    @property
    def depth(self) -> int:
        return self._queue.qsize() + self._pending.depth

    @property
    def age_s(self) -> float:
        return self._pending.age_s

    @property
    def is_full(self) -> bool:
        """New work could not be billed, and must be refused."""
        return self.depth >= self._max_queued

    @property
    def num_spooled(self) -> int:
        if self._spool is None or self.age_s <= SPOOLED_AFTER_S:
            return 0
        return self._spool.depth

    @property
    def spool_problem(self) -> str | None:
        return None if self._spool is None else self._spool.problem

    async def reserve(self, reserve: Reserve) -> Granted:
        """Raises ``QuotaExceededError``, ``LedgerUnavailableError``: nothing is reserved then, nor
        when the caller is cancelled."""
        if self.is_full:
            raise LedgerUnavailableError("The ledger cannot be written; try again shortly.")
        if self.age_s > RESERVE_TIMEOUT_S:
            raise LedgerUnavailableError("The database does not answer in time.")
        if not reserve.budgets:
            return Granted(output_tokens=output_tokens_granted(reserve))
        waiter = self._new_waiter()
        self._put(reserve, waiter)
        try:
            async with asyncio.timeout(RESERVE_TIMEOUT_S):
                outcome = await waiter
        except TimeoutError:
            self._put(release_of(reserve))
            raise LedgerUnavailableError("The database does not answer in time.") from None
        except asyncio.CancelledError:
            self._put(release_of(reserve))
            raise
        if isinstance(outcome, Granted):
            return outcome
        assert outcome is not None
        raise outcome

    def narrow(self, narrow: Narrow) -> None:
        if narrow.budgets:
            self._put(narrow)

    def begin(self, settle: Settle, tokens: Callable[[], Tokens]) -> None:
        """``settle``: its bill if this process dies. ``tokens``: those so far."""
        if self._spool is not None:
            self._spool.begin(settle, tokens)
            if not self._is_counting:
                self._count(self._spool)

    def _count(self, spool: Spool) -> None:
        self._is_counting = spool.count()
        if self._is_counting:
            asyncio.get_running_loop().call_later(COUNT_EVERY_S, self._count, spool)

    def settle(self, settle: Settle) -> None:
        on_written = None if self._spool is None else self._spool.settle(settle)
        self._queue.put(PendingWrite(settle, time.monotonic(), on_written=on_written))

    def record(self, outcome: RequestOutcome) -> None:
        """Of a bill, its captured bodies; its record comes with the bill."""
        if not outcome.is_billed or outcome.captured is not None:
            settle = outcome.settle if outcome.is_billed else with_record(outcome)
            self.records.add(settle, outcome.captured)
            self._queue.put(None)

    def release(self, release: Release) -> None:
        if release.budgets:
            self._put(release)

    async def flush(self, timeout_s: float) -> bool:
        """Returns whether everything queued so far is written."""
        waiter = self._new_waiter()
        self._put(None, waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            logger.error("%d operations of the ledger are not written", self.depth)
            return False
        return True

    def close(self, timeout_s: float) -> None:
        """Writes all that is queued, releases the lease and ends the thread; unwritten bills are
        left to the next process. Idempotent. Blocks."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._put(None)
        self._stop_by_s = time.monotonic() + timeout_s
        self._queue.put(None)  # the thread may have flushed before it could see that it stops
        thread.join(timeout_s)
        if num_unrecorded := self.records.depth:
            logger.error("%d requests are not recorded: the gateway stops", num_unrecorded)

    def _new_waiter(self) -> Waiter:
        assert self._loop is not None, "start() comes first"
        return self._loop.create_future()

    def _put(self, operation: Operation | None, waiter: Waiter | None = None) -> None:
        self._queue.put(PendingWrite(operation, time.monotonic(), waiter))

    # Runs in the thread from here on.

    def _run(self) -> None:
        num_failures = 0
        while not self._has_stopped:
            self._await_work()
            self._adopt()
            try:
                self._pending.write()
            except Error as error:
                self._pop_all()
                self._pending.recover(error)
                if self._spool is not None:
                    self._spool.keep()
                num_failures += 1
                time.sleep(BACKOFF.wait_s(num_failures))
            else:
                num_failures = 0
        self._pending.close()
        if self._spool is not None:
            self._spool.close()

    @property
    def _has_stopped(self) -> bool:
        by_s = self._stop_by_s
        return by_s is not None and (self.depth == 0 or time.monotonic() >= by_s)

    def _await_work(self) -> None:
        while True:
            self._pop_all()
            due_s = min(self._pending.due_s(DELAYS_S), self._adopt_due_s)
            waits_s = due_s - time.monotonic()
            if waits_s <= 0 or self._stop_by_s is not None:
                return
            with suppress(Empty):
                write = self._queue.get(timeout=waits_s)
                if write is not None:
                    self._pending.add(write)

    def _adopt(self) -> None:
        if self._spool is None or time.monotonic() < self._adopt_due_s:
            return
        self._adopt_due_s = time.monotonic() + ADOPT_EVERY_S
        self._spool.create()
        for path in self._spool.files():
            if self.is_full:
                return
            for settle, on_written in self._spool.adopt(path):
                self._pending.add(PendingWrite(settle, time.monotonic(), on_written=on_written))

    def _pop_all(self) -> None:
        try:
            while True:
                write = self._queue.get_nowait()
                if write is not None:
                    self._pending.add(write)
        except Empty:
            pass

    def _notify(self, done: Sequence[tuple[Waiter, Outcome]]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_complete, done)
        except RuntimeError:
            logger.info("the event loop is closed: no request waits for the ledger any more")


def _complete(done: Sequence[tuple[Waiter, Outcome]]) -> None:
    for waiter, outcome in done:
        if not waiter.done():
            waiter.set_result(outcome)
