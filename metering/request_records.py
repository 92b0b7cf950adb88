"""A row for each request that reached a gateway, limited in age and number.

The ledger's thread writes records, many at once, those of bills after their bills, and captured
bodies, masked and cut. A request never waits for its record. While the database is offline the
queue fills; further requests are counted and logged, not recorded.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from django.db import DataError, Error, IntegrityError, connections, transaction
from django.db.models import Max
from msgspec.structs import replace

from inference.logs import ThrottledLog
from inference.redaction import HIDDEN, Redactor, masked, secrets_of
from inference.supervised_threads import contained
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


Ended = tuple[Settle, "Capture | None"]
"""A request with its ``record``, or a bill whose record comes alone; and its captured bodies."""


def insert(ended: Sequence[Ended], *, using: str = "default") -> None:
    """All or none of them. The first record of a request stays. Raises the database's error."""
    captured = [(settle, one) for settle, one in ended if one is not None]
    by_id: dict[str, tuple[Settle, RecordFields]] = {}
    for settle, _ in ended:
        if settle.record is not None:
            by_id.setdefault(settle.request_id, (settle, settle.record))
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        if by_id:
            rows = [row_of(*one) for one in by_id.values()]
            insert_rows(cursor, TABLE, COLUMNS, rows, ONCE)
            new = [by_id[str(request_id).replace("-", "")] for (request_id,) in cursor.fetchall()]
            figures_add(changes_of([(settle, record.kind) for settle, record in new]), using=using)
        if captured:
            _insert_captured(captured, using=using)


def with_record(outcome: RequestOutcome) -> Settle:
    """Its texts are ones that both databases can hold."""
    record = RecordFields(
        status=outcome.status,
        kind=outcome.kind,
        error_message=_text(outcome.error_message, "message"),
        model_asked=_text(outcome.model_asked, "model_asked"),
        end_user=_text(outcome.end_user, "end_user"),
        queue_ms=outcome.queue_ms,
        is_usage_estimated=outcome.is_usage_estimated,
        targets_tried=outcome.targets_tried,
    )
    return replace(outcome.settle, record=record)


def row_of(settle: Settle, facts: RecordFields) -> Row:
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
"""Small: reservations wait while a batch is written."""
MAX_CAPTURED_BYTES = 64 * 1024 * 1024
"""The limit of captured bodies in the queue. Beyond that only their sizes are recorded."""
WAIT_S = 0.25
"""A transaction of many records takes little more than that of one."""


class _Queued(NamedTuple):
    ended: Ended
    queued_s: float
    on_written: Callable[[], object] | None


class RecordQueue:
    """Records and captured bodies until they are written, by the ledger's thread. ``using``:
    Django's name of the database."""

    def __init__(
        self,
        *,
        using: str = "default",
        max_queued: int = MAX_QUEUED,
        insert: Callable[..., None] = insert,
    ) -> None:
        self._using = using
        self._max_queued = max_queued
        self._insert = insert
        self._queue: deque[_Queued] = deque()
        self._num_dropped = 0
        self._num_dropped_logged = 0
        self._log = ThrottledLog(logger, logging.ERROR)

    def add(
        self,
        settle: Settle,
        captured: Capture | None = None,
        on_written: Callable[[], object] | None = None,
    ) -> None:
        """From any thread. ``on_written`` is called when the database has it, or will not get
        it."""
        if len(self._queue) >= self._max_queued:
            self._num_dropped += 1
            if on_written is not None:
                on_written()
            return
        if captured is not None and self._captured_bytes + captured.num_bytes > MAX_CAPTURED_BYTES:
            captured.drop()
        self._queue.append(_Queued((settle, captured), time.monotonic(), on_written))

    @property
    def _captured_bytes(self) -> int:
        queued = [one.ended[1] for one in list(self._queue)]
        return sum(captured.num_bytes for captured in queued if captured is not None)

    @property
    def depth(self) -> int:
        return len(self._queue)

    @property
    def due_s(self) -> float:
        """By the monotonic clock."""
        return self._queue[0].queued_s + WAIT_S if self._queue else float("inf")

    @property
    def num_dropped(self) -> int:
        """The queue was full, or the database refused their row."""
        return self._num_dropped

    def write(self) -> None:
        """One batch. Raises the database's error when it is offline, with all still queued."""
        batch = list(islice(self._queue, MAX_BATCH))
        self._write([one.ended for one in batch])
        for one in batch:
            self._queue.popleft()
            if one.on_written is not None:
                one.on_written()
        self._report_dropped()

    def _write(self, batch: Sequence[Ended]) -> None:
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
            logger.exception("request %s cannot be recorded", batch[0][0].request_id)

    def _report_dropped(self) -> None:
        if self._num_dropped > self._num_dropped_logged:
            self._num_dropped_logged = self._num_dropped
            self._log.log(
                "dropped",
                f"{self._num_dropped} requests of this gateway are not recorded: the queue of "
                f"{self._max_queued} was full, or the database refused their rows",
            )
