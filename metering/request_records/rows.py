"""Inserts request records, a batch in one transaction. SQLite and PostgreSQL.

Raw SQL: this runs for every request, and building model instances would cost more than the
database does. PostgreSQL gets a batch as one JSON parameter, because psycopg quotes each parameter
in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec
from django.db import connections, transaction

from metering.ledger.entries import FINISHED, Outcome, RecordFields, Settle
from metering.models import RequestRecord
from metering.request_records import captures
from metering.request_records.captures import Captured
from metering.series.figures import changes_of
from metering.series.store import figures_add

EPOCH = datetime(1970, 1, 1)
MAX_INT64 = 2**63 - 1
UNKNOWN_MODEL = "-"
TABLE = RequestRecord._meta.db_table
TYPES = {
    "request_id": "uuid",
    "at": "timestamptz",
    "account": "text",
    "key": "text",
    "end_user": "text",
    "model_asked": "text",
    "model": "text",
    "neuron": "text",
    "endpoint": "text",
    "client": "text",
    "status": "smallint",
    "outcome": "text",
    "code": "text",
    "message": "text",
    "queue_ms": "bigint",
    "time_to_first_token_ms": "bigint",
    "duration_ms": "bigint",
    "prompt_tokens": "bigint",
    "cached_tokens": "bigint",
    "completion_tokens": "bigint",
    "reasoning_tokens": "bigint",
    "cost_micro_usd": "bigint",
    "is_usage_estimated": "boolean",
    "targets_tried": "text",
    "unit": "text",
    "num_units": "bigint",
}
"""PostgreSQL's type of each column that is written, in the order of ``row_of``."""
MAX_CHARS: dict[str, int] = {
    name: RequestRecord._meta.get_field(name).max_length  # type: ignore[union-attr,misc]
    for name, kind in TYPES.items()
    if kind == "text"
}
_NAMES = ", ".join(f'"{name}"' for name in TYPES)
_INSERT = f"INSERT INTO {TABLE} ({_NAMES})"
_ONCE = "ON CONFLICT (request_id) DO NOTHING"
SQLITE_INSERT = f"{_INSERT} VALUES ({', '.join(['%s'] * len(TYPES))}) {_ONCE}"
POSTGRES_INSERT = (
    f"{_INSERT} SELECT "
    + ", ".join(f"(record ->> {place})::{kind}" for place, kind in enumerate(TYPES.values()))
    + f" FROM jsonb_array_elements(%s::jsonb) AS record {_ONCE}"
)

Row = tuple[str | int | None, ...]


class Facts(Protocol):
    """What a record has beside the fields of its ``Settle``."""

    @property
    def status(self) -> int: ...
    @property
    def kind(self) -> Outcome: ...
    @property
    def error_message(self) -> str: ...
    @property
    def model_asked(self) -> str: ...
    @property
    def end_user(self) -> str: ...
    @property
    def queue_ms(self) -> int | None: ...
    @property
    def is_usage_estimated(self) -> bool: ...
    @property
    def targets_tried(self) -> tuple[str, ...]: ...


class EndedRequest(Facts, Protocol):
    """The gateway's ``RequestOutcome``, as far as it is recorded."""

    @property
    def settle(self) -> Settle: ...
    @property
    def is_billed(self) -> bool:
        """The ledger writes its record with its entry."""
        ...

    @property
    def captured(self) -> Captured | None: ...


class Record(NamedTuple):
    settle: Settle
    facts: Facts

    @property
    def kind(self) -> Outcome:
        return self.facts.kind


class _RecordedAlreadyError(Exception):
    """Some of the batch are: by an earlier try whose commit was not confirmed."""


def insert(ended: Sequence[EndedRequest], *, using: str = "default") -> None:
    """Records all of them or none, with their captured bodies. Of those that are billed the bodies
    alone. Raises the database's error."""
    with transaction.atomic(using=using):
        insert_records([Record(one.settle, one) for one in ended if not one.is_billed], using=using)
        captured = [(one.settle, one.captured) for one in ended if one.captured is not None]
        if captured:
            captures.insert(captured, using=using)


def insert_records(records: Sequence[Record], *, using: str) -> None:
    """Records all of them or none, and counts them in the series; one that is recorded already is
    left as it is. Raises the database's error."""
    try:
        _insert_new(records, using)
    except _RecordedAlreadyError:
        _insert_new(_not_recorded(records, using), using)


def _insert_new(records: Sequence[Record], using: str) -> None:
    """Raises ``_RecordedAlreadyError`` and the database's error."""
    if not records:
        return
    rows = [row_of(*record) for record in records]
    connection = connections[using]
    with transaction.atomic(using=using), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(POSTGRES_INSERT, [msgspec.json.encode(rows).decode()])
        else:
            cursor.executemany(SQLITE_INSERT, rows)
        if cursor.rowcount < len(rows):
            raise _RecordedAlreadyError
        figures_add(changes_of(records), using=using)


def _not_recorded(records: Sequence[Record], using: str) -> list[Record]:
    """Each once."""
    by_id = {UUID(hex=one.settle.request_id): one for one in records}
    recorded = RequestRecord.objects.using(using).filter(request_id__in=by_id)
    for request_id in recorded.values_list("request_id", flat=True):
        del by_id[request_id]
    return list(by_id.values())


def record_fields(facts: Facts) -> RecordFields:
    """A copy with texts that both databases can hold."""
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


def row_of(settle: Settle, facts: Facts) -> Row:
    """Texts are cut to what the columns hold and numbers bounded: a row that a database refuses
    would hold up its batch."""
    is_answered = settle.outcome == FINISHED
    return (
        settle.request_id,
        _moment(settle.ended_unix_s),
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
        _bounded(facts.queue_ms),
        _bounded(settle.time_to_first_token_ms),
        _bounded(settle.duration_ms),
        _bounded(settle.prompt_tokens),
        _bounded(settle.cached_tokens),
        _bounded(settle.completion_tokens),
        _bounded(settle.reasoning_tokens),
        _bounded(settle.cost_micro_usd),
        int(facts.is_usage_estimated),
        _text(", ".join(facts.targets_tried), "targets_tried"),
        settle.metered.unit,
        _bounded(settle.metered.num_units),
    )


def _moment(unix_s: float) -> str:
    """Returns a time as Django stores it in SQLite: in UTC, without a zone. Connections to
    PostgreSQL have UTC as their zone."""
    return str(EPOCH + timedelta(microseconds=int(unix_s * 1_000_000)))


def _text(text: str, column: str) -> str:
    if len(text) > MAX_CHARS[column]:
        text = text[: MAX_CHARS[column]]
    if text.isascii():
        return text if "\0" not in text else text.replace("\0", "")
    # A client's JSON may hold lone surrogates, which are no text of either database.
    return text.encode("utf-8", "replace").decode().replace("\0", "")


def _bounded(number: int | None) -> int | None:
    if number is None or 0 <= number <= MAX_INT64:
        return number
    return 0 if number < 0 else MAX_INT64
