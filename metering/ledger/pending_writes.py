"""The queue of a gateway's writer, and its batches into the database. Belongs to one thread, whose
connection it uses; any may read ``depth`` and ``age_s``.

A batch that failed stays in front and is retried, so the operations of a request keep their order.
Reservations are refused instead: no request waits for a database that is offline. One of them may
have been committed all the same, if the connection broke at the wrong moment: a ``Release`` takes
its place. The gateway's lease is renewed from its first reservation on.

Records (``metering.request_records``) follow their bills; ``on_written`` comes after both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from django.db import DataError, Error, IntegrityError, connections

from inference.supervised_threads import contained
from metering.errors import LedgerUnavailableError
from metering.ledger import store
from metering.ledger.entries import Operation, Release, Reserve, Settle
from metering.request_records import RecordQueue

logger = logging.getLogger(__name__)

MAX_BATCH = 500
LEASE_S = 20
LEASE_RENEWAL_S = 5.0
IDLE_WAIT_S = 600.0

CONFLICT_SQLSTATES = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL: serialization failure, deadlock, lock not available."""

Outcome = store.Result | LedgerUnavailableError
Waiter = asyncio.Future[Outcome]


@dataclass(slots=True)
class PendingWrite:
    """``operation`` is ``None`` for a flush, which waits for those before it."""

    operation: Operation | None
    queued_s: float
    waiter: Waiter | None = None
    on_written: Callable[[], object] | None = None
    """Called when the database has it, or will never accept it."""


class PendingWrites:
    def __init__(
        self,
        gateway_id: str,
        *,
        using: str,
        records: RecordQueue,
        notify: Callable[[Sequence[tuple[Waiter, Outcome]]], None],
        apply: Callable[..., list[store.Result]] = store.apply,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._gateway_id = gateway_id
        self._using = using
        self._notify = notify
        self._apply = apply
        self._clock = clock
        self._writes: deque[PendingWrite] = deque()
        self._records = records
        self._oldest_s: float | None = None
        self._lease_due_s = float("inf")
        self._num_singly = 0

    def add(self, write: PendingWrite) -> None:
        self._writes.append(write)
        if isinstance(write.operation, Reserve) and self._lease_due_s == float("inf"):
            self._lease_due_s = 0.0

    @property
    def depth(self) -> int:
        return len(self._writes)

    @property
    def age_s(self) -> float:
        oldest_s = self._oldest_s
        return 0.0 if oldest_s is None else max(0.0, time.monotonic() - oldest_s)

    def due_s(self, delays_s: Mapping[type, float]) -> float:
        """By the monotonic clock. ``delays_s``: how long operations of a type may wait for
        others."""
        now_s = time.monotonic()
        due_s = min(self._lease_due_s, self._records.due_s, now_s + IDLE_WAIT_S)
        for write in self._writes:
            due_s = min(due_s, write.queued_s + delays_s.get(type(write.operation), 0.0))
            if due_s <= now_s:
                break
        return due_s

    def write(self) -> None:
        """Renews the lease when it is due, then writes the records that are due, or that a flush
        waits for, and one batch. Raises the database's error when it is offline, with all writes
        still queued."""
        if time.monotonic() >= self._lease_due_s:
            self._write_lease(LEASE_S)
            self._lease_due_s = time.monotonic() + LEASE_RENEWAL_S
        batch = list(islice(self._writes, 1 if self._num_singly else MAX_BATCH))
        is_flush = bool(batch) and batch[0].operation is None
        if self._records.depth and (is_flush or time.monotonic() >= self._records.due_s):
            self._records.write()
        if not batch or (is_flush and self._records.depth):
            return
        until_flush = takewhile(lambda write: write.operation is not None, batch)
        batch = batch[:1] if is_flush else [*until_flush]
        self._oldest_s = batch[0].queued_s
        operations = [write.operation for write in batch if write.operation is not None]
        outcomes: Iterator[Outcome]
        try:
            outcomes = iter(
                contained(self._apply, operations, using=self._using) if operations else ()
            )
        except Exception as error:
            if isinstance(error, Error) and not isinstance(error, DataError | IntegrityError):
                raise
            if len(batch) > 1:
                self._num_singly = len(batch)
                return
            logger.exception("an operation cannot be written and is dropped: %s", operations)
            if isinstance(operations[0], Settle):
                batch[0].operation = release_of(operations[0])
                return
            outcomes = iter([LedgerUnavailableError("The ledger cannot hold this request.")])
        for write in batch:
            self._writes.popleft()
            if isinstance(write.operation, Settle) and write.operation.record is not None:
                self._records.add(write.operation, on_written=write.on_written)
            elif write.on_written is not None:
                write.on_written()
        self._num_singly = max(0, self._num_singly - 1)
        self._oldest_s = self._writes[0].queued_s if self._writes else None
        self._done(batch, [None if write.operation is None else next(outcomes) for write in batch])

    def recover(self, error: Error) -> None:
        if is_conflict(error):
            logger.info("the ledger's transaction is tried again: %s", error)
            return
        logger.warning("the ledger cannot be written, %d operations wait: %s", self.depth, error)
        connections[self._using].close()
        refused = [write for write in self._writes if isinstance(write.operation, Reserve)]
        failure = LedgerUnavailableError("The database does not answer; try again shortly.")
        self._done(refused, [failure] * len(refused))
        for write in refused:
            assert write.operation is not None
            write.operation = release_of(write.operation)
            write.waiter = None

    def close(self) -> None:
        try:
            self._write_lease(0)
        except Error as error:
            logger.warning("the gateway's lease stands until it runs out: %s", error)
        connections[self._using].close()

    def _done(self, writes: Sequence[PendingWrite], outcomes: Sequence[Outcome]) -> None:
        done = [
            (write.waiter, outcome)
            for write, outcome in zip(writes, outcomes, strict=True)
            if write.waiter is not None
        ]
        if done:
            self._notify(done)

    def _write_lease(self, lease_s: int) -> None:
        with connections[self._using].cursor() as cursor:
            cursor.execute(
                "INSERT INTO metering_gatewaylease (gateway_id, lease_until_unix_s) "
                "VALUES (%s, %s) ON CONFLICT (gateway_id) "
                "DO UPDATE SET lease_until_unix_s = excluded.lease_until_unix_s",
                [self._gateway_id, int(self._clock()) + lease_s],
            )


def is_conflict(error: BaseException) -> bool:
    """Whether the same transaction may succeed at once."""
    sqlstate = getattr(error.__cause__, "sqlstate", None)
    return sqlstate in CONFLICT_SQLSTATES or "database is locked" in str(error)


def release_of(operation: Operation) -> Release:
    return Release(request_id=operation.request_id, budgets=operation.budgets)
