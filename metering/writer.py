"""The one thread of a gateway process that writes budgets, reservations and the ledger.

    event loop                          writer thread, with a database connection of its own
    reserve ─┐                          take all that is queued, at most MAX_BATCH
    narrow  ─┼─▶ queue, in order ─────▶ one transaction (metering.store)
    settle  ─┤                          tell all waiters by one call into the loop
    release ─┘                          away? keep it all, wait, try again

Nothing waits for a timer: a batch is what came while the last one was written. A ``Narrow`` alone
does not start one, because only the next reservation has any use for it.

While the database is away reservations are refused and what must be written is kept. A reservation
that was refused may have been committed all the same, if the connection broke at the wrong moment:
a ``Release`` takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue

from django.db import DataError, Error, IntegrityError, connections

from metering import store
from metering.book import output_tokens_granted
from metering.entries import Granted, Narrow, Operation, Release, Reserve, Settle
from metering.errors import LedgerUnavailableError

logger = logging.getLogger(__name__)

MAX_BATCH = 500
MAX_QUEUED = 200_000
"""What the writer keeps while the database is away; more work is refused."""
RESERVE_TIMEOUT_S = 10.0
LEASE_S = 45
LEASE_RENEWAL_S = 10.0
NARROW_DELAY_S = 1.0
"""How long a ``Narrow`` waits at most for something that it can be written with."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 2.0

CONFLICT_SQLSTATES = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL: serialization failure, deadlock, lock not available."""

Outcome = store.Result | LedgerUnavailableError


@dataclass(slots=True)
class _Job:
    """``operation`` is ``None`` for a flush, which only waits for what was queued before it."""

    operation: Operation | None
    queued_s: float
    waiter: asyncio.Future[Outcome] | None = None


class LedgerWriter:
    """``reserve``, ``narrow``, ``settle``, ``release`` and ``flush`` are for the event loop that
    called ``start``; the properties for any thread. ``using`` is Django's name of the database."""

    def __init__(
        self,
        gateway_id: str,
        *,
        using: str = "default",
        max_queued: int = MAX_QUEUED,
        apply: Callable[..., list[store.Result]] = store.apply,
    ) -> None:
        self._gateway_id = gateway_id
        self._using = using
        self._max_queued = max_queued
        self._apply = apply
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._jobs: deque[_Job] = deque()
        """Taken from the queue and not written yet. Only the thread changes it."""
        self._oldest_s: float | None = None
        self._lease_due_s = 0.0
        self._num_singly = 0
        """So many jobs are written one by one, to find the one that the database refuses."""
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """In the event loop that the waiters belong to."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """How many operations are not written yet."""
        return self._queue.qsize() + len(self._jobs)

    @property
    def age_s(self) -> float:
        """How long the oldest of them has waited."""
        oldest_s = self._oldest_s
        return 0.0 if oldest_s is None else max(0.0, time.monotonic() - oldest_s)

    @property
    def is_full(self) -> bool:
        """What comes now could not be billed: new work must be refused."""
        return self.depth >= self._max_queued

    async def reserve(self, reserve: Reserve) -> Granted:
        """Raises ``QuotaExceededError`` and ``LedgerUnavailableError``; then nothing is held, nor
        when the caller is cancelled."""
        if self.is_full:
            raise LedgerUnavailableError("The ledger cannot be written; try again shortly.")
        if not reserve.budgets:
            return Granted(output_tokens=output_tokens_granted(reserve))
        assert self._loop is not None, "start() comes first"
        waiter: asyncio.Future[Outcome] = self._loop.create_future()
        self._put(reserve, waiter)
        try:
            async with asyncio.timeout(RESERVE_TIMEOUT_S):
                outcome = await waiter
        except TimeoutError:
            self._put(_release(reserve))
            raise LedgerUnavailableError("The database does not answer in time.") from None
        except asyncio.CancelledError:
            self._put(_release(reserve))
            raise
        if isinstance(outcome, Granted):
            return outcome
        assert outcome is not None
        raise outcome

    def narrow(self, narrow: Narrow) -> None:
        if narrow.budgets:
            self._put(narrow)

    def settle(self, settle: Settle) -> None:
        self._put(settle)

    def release(self, release: Release) -> None:
        """For a request that was reserved and never submitted."""
        if release.budgets:
            self._put(release)

    async def flush(self, timeout_s: float) -> bool:
        """Waits until all that was told so far is written; whether it is."""
        assert self._loop is not None, "start() comes first"
        waiter: asyncio.Future[Outcome] = self._loop.create_future()
        self._queue.put(_Job(None, time.monotonic(), waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            logger.error("%d operations of the ledger are not written", self.depth)
            return False
        return True

    async def stop(self, timeout_s: float) -> None:
        """Flushes, gives up the lease and ends the thread. A second time it does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        await self.flush(timeout_s)
        self._is_stopping = True
        self._queue.put(None)
        await asyncio.to_thread(thread.join, timeout_s)

    def _put(self, operation: Operation, waiter: asyncio.Future[Outcome] | None = None) -> None:
        self._queue.put(_Job(operation, time.monotonic(), waiter))

    # What follows runs in the thread.

    def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while not self._is_stopping:
            self._await_work()
            try:
                self._renew_lease_if_due()
                self._write_one_batch()
            except Error as error:
                self._recover(error)
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
            else:
                backoff_s = FIRST_BACKOFF_S
        try:
            self._write_lease(0)
        except Error as error:
            logger.warning("the gateway's lease stands until it runs out: %s", error)
        connections[self._using].close()

    def _await_work(self) -> None:
        """Returns with all that is queued, when something is worth writing."""
        while not self._is_stopping:
            self._take_all()
            now_s = time.monotonic()
            waits_s = self._lease_due_s - now_s
            if any(not isinstance(job.operation, Narrow) for job in self._jobs):
                return
            if self._jobs:
                waits_s = min(waits_s, self._jobs[0].queued_s + NARROW_DELAY_S - now_s)
            if waits_s <= 0:
                return
            try:
                job = self._queue.get(timeout=waits_s)
            except Empty:
                return
            if job is not None:
                self._jobs.append(job)

    def _take_all(self) -> None:
        try:
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    self._jobs.append(job)
        except Empty:
            pass

    def _renew_lease_if_due(self) -> None:
        if time.monotonic() >= self._lease_due_s:
            self._write_lease(LEASE_S)
            self._lease_due_s = time.monotonic() + LEASE_RENEWAL_S

    def _write_one_batch(self) -> None:
        """Raises the database's error when it is away; all jobs are then still there."""
        batch = list(islice(self._jobs, 1 if self._num_singly else MAX_BATCH))
        if not batch:
            return
        self._oldest_s = batch[0].queued_s
        operations = [job.operation for job in batch if job.operation is not None]
        outcomes: Iterator[Outcome]
        try:
            outcomes = iter(self._apply(operations, using=self._using) if operations else ())
        except Exception as error:
            if isinstance(error, Error) and not isinstance(error, DataError | IntegrityError):
                raise
            if len(batch) > 1:
                self._num_singly = len(batch)
                return
            logger.exception("an operation cannot be written and is dropped: %s", operations)
            if isinstance(operations[0], Settle):
                batch[0].operation = _release(operations[0])
                return
            outcomes = iter([LedgerUnavailableError("The ledger cannot hold this request.")])
        for _ in batch:
            self._jobs.popleft()
        self._num_singly = max(0, self._num_singly - 1)
        self._oldest_s = self._jobs[0].queued_s if self._jobs else None
        self._tell(batch, [None if job.operation is None else next(outcomes) for job in batch])

    def _tell(self, batch: Sequence[_Job], outcomes: Sequence[Outcome]) -> None:
        told = [
            (job.waiter, outcome)
            for job, outcome in zip(batch, outcomes, strict=True)
            if job.waiter is not None
        ]
        if not told or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(_complete, told)
        except RuntimeError:
            logger.info("the event loop is closed: nobody waits for the ledger any more")

    def _write_lease(self, lease_s: int) -> None:
        with connections[self._using].cursor() as cursor:
            cursor.execute(
                "INSERT INTO metering_gatewaylease (gateway_id, lease_until_unix_s) "
                "VALUES (%s, %s) ON CONFLICT (gateway_id) "
                "DO UPDATE SET lease_until_unix_s = excluded.lease_until_unix_s",
                [self._gateway_id, int(time.time()) + lease_s],
            )

    def _recover(self, error: Error) -> None:
        """A conflict with another writer is tried again as it is. Otherwise the database is away:
        nobody waits for that, and what must be written is kept."""
        if is_conflict(error):
            logger.info("the ledger's transaction is tried again: %s", error)
            return
        logger.warning("the ledger cannot be written, %d operations wait: %s", self.depth, error)
        connections[self._using].close()
        self._take_all()
        refused = [job for job in self._jobs if isinstance(job.operation, Reserve)]
        failure = LedgerUnavailableError("The database does not answer; try again shortly.")
        self._tell(refused, [failure] * len(refused))
        for job in refused:
            assert job.operation is not None
            job.operation = _release(job.operation)
            job.waiter = None


def is_conflict(error: BaseException) -> bool:
    """Whether the same transaction may well succeed at once: deadlocks, serialization failures and
    a locked SQLite."""
    sqlstate = getattr(error.__cause__, "sqlstate", None)
    return sqlstate in CONFLICT_SQLSTATES or "database is locked" in str(error)


def _release(operation: Operation) -> Release:
    return Release(request_id=operation.request_id, budgets=operation.budgets)


def _complete(told: Sequence[tuple[asyncio.Future[Outcome], Outcome]]) -> None:
    for waiter, outcome in told:
        if not waiter.done():
            waiter.set_result(outcome)
