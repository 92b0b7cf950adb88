"""A row for each request that reached a gateway, limited in age and number.

The one thread of a gateway process writes the records of requests without a bill, and captured
bodies, masked and cut. A bill's record is written after it, by ``metering.ledger``. A request never
waits for its record: ``add`` appends to a list, and nothing wakes the thread. While the database is
offline the queue fills; further requests are counted and logged, not recorded.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from django.db import DataError, Error, IntegrityError, connections, transaction
from django.db.models import Max

from inference.backoff import Backoff
from inference.logs import ThrottledLog
from inference.redaction import HIDDEN, Redactor, masked, secrets_of
from inference.supervised_threads import SupervisedThread, contained
from metering.ledger.entries import FINISHED, RecordFields, Settle
from metering.models import CapturedRequest, RequestRecord
from metering.series import UNKNOWN_MODEL, changes_of
from metering.series_store import figures_add
from metering.sql import Row, bounded, insert_rows, stored_moment, stored_text

if TYPE_CHECKING:
    from inference.gateway.request.outcome import Capture, RequestOutcome

logger = logging.getLogger(__name__)

TABLE = RequestRecord._meta.db_table
ONCE = "ON CONFLICT (request_id) DO NOTHING RETURNING request_id"
COLUMNS = (
    *("request_id", "at", "account", "key", "end_user", "model_asked", "model", "neuron"),
    *("endpoint", "client", "status", "outcome", "code", "message"),
    *("queue_ms", "time_to_first_token_ms", "duration_ms"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("cost_micro_usd", "is_usage_estimated", "targets_tried", "unit", "num_units"),
)
MAX_CHARS: dict[str, int] = {
    name: cast(Any, RequestRecord._meta.get_field(name)).max_length for name in COLUMNS
}


class Record(NamedTuple):
    settle: Settle
    facts: RecordFields | RequestOutcome


def insert(ended: Sequence[RequestOutcome], *, using: str = "default") -> None:
    """All or none; of billed ones only the bodies. Raises the database's error."""
    with transaction.atomic(using=using):
        insert_records([Record(one.settle, one) for one in ended if not one.is_billed], using=using)
        captured = [(one.settle, one.captured) for one in ended if one.captured is not None]
        if captured:
            _insert_captured(captured, using=using)


def insert_records(records: Iterable[Record], *, using: str) -> None:
    """All or none, and the first of each request; existing ones stay unchanged. Raises the
    database's error."""
    by_id: dict[str, Record] = {}
    for one in records:
        by_id.setdefault(one.settle.request_id, one)
    if not by_id:
        return
    rows = [row_of(*record) for record in by_id.values()]
    with (
        transaction.atomic(using=using, savepoint=False),
        connections[using].cursor() as cursor,
    ):
        insert_rows(cursor, TABLE, COLUMNS, rows, ONCE)
        new = [by_id[str(request_id).replace("-", "")] for (request_id,) in cursor.fetchall()]
        figures_add(changes_of([(one.settle, one.facts.kind) for one in new]), using=using)


def record_fields(facts: RequestOutcome) -> RecordFields:
    """Its texts are ones that both databases can hold."""
    return RecordFields(
        status=facts.status,
        kind=facts.kind,
        error_message=_text(facts.error_message, "message"),
        model_asked=_text(facts.model_asked, "model_asked"),
        end_user=_text(facts.end_user, "end_user"),
        queue_ms=facts.queue_ms,
        is_usage_estimated=facts.is_usage_estimated,
        targets_tried=facts.targets_tried,
    )


def row_of(settle: Settle, facts: RecordFields | RequestOutcome) -> Row:
    is_answered = settle.outcome == FINISHED
    return (
        settle.request_id,
        stored_moment(int(settle.ended_unix_s * 1_000_000)),
        _text(settle.account, "account"),
        _text(settle.key, "key"),
        _text(facts.end_user, "end_user") or None,
        _text(facts.model_asked, "model_asked"),
        "" if settle.model == UNKNOWN_MODEL else _text(settle.model, "model"),
        _text(settle.neuron, "neuron"),
        _text(settle.endpoint, "endpoint"),
        _text(settle.client, "client"),
        facts.status,
        facts.kind.value,
        None if is_answered else _text(settle.outcome, "code"),
        _text(facts.error_message, "message"),
        bounded(facts.queue_ms),
        bounded(settle.time_to_first_token_ms),
        bounded(settle.duration_ms),
        bounded(settle.prompt_tokens),
        bounded(settle.cached_tokens),
        bounded(settle.completion_tokens),
        bounded(settle.reasoning_tokens),
        bounded(settle.cost_micro_usd),
        facts.is_usage_estimated,
        _text(", ".join(facts.targets_tried), "targets_tried"),
        settle.metered.unit,
        bounded(settle.metered.num_units),
    )


def _text(text: str, column: str) -> str:
    return stored_text(text, MAX_CHARS[column])


MAX_CAPTURED_CHARS = 256 * 1024
MAX_CAPTURED_ROWS = 1_000
SECRET_HEADERS = ("auth", "key", "token", "secret", "cookie", "password")


def _insert_captured(captured: Iterable[tuple[Settle, Capture]], *, using: str) -> None:
    redact = Redactor(secrets_of(os.environ))
    rows = [_captured_row(settle, one, redact) for settle, one in captured]
    stored = CapturedRequest.objects.using(using)
    stored.bulk_create(rows, ignore_conflicts=True)
    newest = stored.aggregate(id=Max("pk"))["id"] or 0
    stored.filter(pk__lte=newest - MAX_CAPTURED_ROWS).delete()


def _captured_row(settle: Settle, captured: Capture, redact: Redactor) -> CapturedRequest:
    return CapturedRequest(
        request_id=settle.request_id,
        at=datetime.fromtimestamp(settle.ended_unix_s, UTC),
        headers="\n".join(_header(name, value, redact) for name, value in captured.headers),
        request=_captured_text(captured.request, captured.num_request_bytes, redact),
        answer=_captured_text(captured.answer, captured.num_answer_bytes, redact),
        trace=_cut(_plain(masked(captured.trace, redact))),
    )


def _header(name: bytes, value: bytes, redact: Redactor) -> str:
    word = name.decode("latin-1").lower()
    if any(secret in word for secret in SECRET_HEADERS):
        return f"{word}: {HIDDEN}"
    return f"{word}: {_plain(masked(value.decode('latin-1'), redact))}"


def _captured_text(read: bytes | bytearray, num_bytes: int, redact: Redactor) -> str:
    """``read``: the first of ``num_bytes``. Masked before it is cut: half a key is not detected."""
    text = _cut(_plain(masked(read.decode("utf-8", "replace"), redact)))
    unread = num_bytes - len(read)
    return f"{text}[{unread:,} bytes left out]" if unread else text


def _cut(text: str) -> str:
    if len(text) <= MAX_CAPTURED_CHARS:
        return text
    return f"{text[:MAX_CAPTURED_CHARS]}[{len(text) - MAX_CAPTURED_CHARS:,} characters left out]"


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "")


MAX_QUEUED = 50_000
MAX_BATCH = 200
"""Small: SQLite's ledger waits while a batch is written."""
MAX_CAPTURED_BYTES = 64 * 1024 * 1024
"""The limit of captured bodies in the queue. Beyond that only their sizes are recorded."""
INTERVAL_S = 0.5
BACKOFF = Backoff(first_s=0.1, max_s=5.0)


class RequestRecordWriter:
    """``add`` is for one thread, properties for any. ``using``: Django's name of the database."""

    def __init__(
        self,
        *,
        using: str = "default",
        max_queued: int = MAX_QUEUED,
        insert: Callable[..., None] = insert,
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
        """The queue was full, or the database refused their row."""
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
