"""The one thread of a gateway process that writes the records of requests without a bill, and
captured bodies. A bill's record is written with it, by ``metering.ledger``.

    event loop                           writer thread, with a database connection of its own
    add ─▶ queue, at most max_queued ──▶ every INTERVAL_S, in batches       (rows)
     └ full: dropped, counted              away? keeps them, waits, tries again

A request never waits for its record: ``add`` appends to a list, and nothing wakes the thread. While
the database is offline the queue fills; further requests are counted and logged, not recorded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from django.db import DataError, Error, IntegrityError, connections

from inference.backoff import Backoff
from inference.logs import ThrottledLog
from inference.supervised_threads import SupervisedThread, contained
from metering.request_records import rows

if TYPE_CHECKING:
    from inference.gateway.request.outcome import RequestOutcome

logger = logging.getLogger(__name__)

MAX_QUEUED = 50_000
MAX_BATCH = 200
"""Small: SQLite's ledger waits while a batch is written."""
MAX_CAPTURED_BYTES = 64 * 1024 * 1024
"""The limit of captured bodies in the queue. Beyond that only their sizes are recorded."""
INTERVAL_S = 0.5
BACKOFF = Backoff(first_s=0.1, max_s=5.0)


class RequestRecordWriter:
    """``add`` is for one thread; the properties are for any. ``using`` is Django's name of the
    database."""

    def __init__(
        self,
        *,
        using: str = "default",
        max_queued: int = MAX_QUEUED,
        insert: Callable[..., None] = rows.insert,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._using = using
        self._max_queued = max_queued
        self._insert = insert
        self._interval_s = interval_s
        self._queue: deque[RequestOutcome] = deque()
        self._num_dropped = 0
        self._num_dropped_logged = 0
        self._stopping = threading.Event()
        self._stop_by_s = float("inf")
        self._log = ThrottledLog(logger, logging.ERROR)
        self._thread: SupervisedThread | None = None

    def start(self) -> None:
        self._thread = SupervisedThread(self._run, name="request records")
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Writes the queue, for at most ``timeout_s``. Idempotent. Blocks."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop_by_s = time.monotonic() + timeout_s
        self._stopping.set()
        thread.join(timeout_s)
        if self._queue:
            logger.error("%d requests are not recorded: the gateway stops", len(self._queue))

    def add(self, ended: RequestOutcome) -> None:
        if ended.is_billed and ended.captured is None:
            return
        if len(self._queue) >= self._max_queued:
            self._num_dropped += 1
            return
        captured = ended.captured
        if captured is not None and self._captured_bytes + captured.num_bytes > MAX_CAPTURED_BYTES:
            captured.drop()
        self._queue.append(ended)

    @property
    def _captured_bytes(self) -> int:
        return sum(one.captured.num_bytes for one in list(self._queue) if one.captured is not None)

    @property
    def depth(self) -> int:
        return len(self._queue)

    @property
    def num_dropped(self) -> int:
        """Requests without a record, because the queue was full or the database refused their
        row."""
        return self._num_dropped

    # Runs in the thread from here on.

    def _run(self) -> None:
        num_failures, wait_s = 0, self._interval_s
        while not self._stopping.wait(wait_s):
            num_failures = 0 if self._write_all() else num_failures + 1
            wait_s = BACKOFF.wait_s(num_failures) if num_failures else self._interval_s
            self._report_dropped()
        self._write_all()
        connections[self._using].close()

    def _write_all(self) -> bool:
        while self._queue and time.monotonic() < self._stop_by_s:
            batch = list(islice(self._queue, MAX_BATCH))
            try:
                self._write(batch)
            except Error as error:
                self._log.log("away", f"requests cannot be recorded, {self.depth} wait: {error}")
                connections[self._using].close()
                return False
            for _ in batch:
                self._queue.popleft()
        return True

    def _write(self, batch: Sequence[RequestOutcome]) -> None:
        try:
            contained(self._insert, batch, using=self._using)
        except Exception as error:
            if isinstance(error, Error) and not isinstance(error, DataError | IntegrityError):
                raise
            if len(batch) > 1:
                for one in batch:
                    self._write([one])
                return
            self._num_dropped += 1
            logger.exception("request %s cannot be recorded", batch[0].settle.request_id)

    def _report_dropped(self) -> None:
        if self._num_dropped > self._num_dropped_logged:
            self._num_dropped_logged = self._num_dropped
            self._log.log(
                "dropped",
                f"{self._num_dropped} requests of this gateway are not recorded: the queue of "
                f"{self._max_queued} was full, or the database refused their rows",
            )
