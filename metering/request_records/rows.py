"""Inserts request records, a batch in one transaction. SQLite and PostgreSQL.

Raw SQL: this runs for every request, and building model instances would cost more than the
database does. PostgreSQL gets a batch as one JSON parameter, because psycopg quotes each parameter
in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
from django.db import connections, transaction

from metering.ledger.entries import FINISHED, Settle
from metering.models import RequestRecord
from metering.outcomes import Outcome

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


class EndedRequest(Protocol):
    """The gateway's ``RequestOutcome``, as far as it is recorded."""

    @property
    def settle(self) -> Settle: ...
    @property
    def status(self) -> int: ...
    @property
    def error_message(self) -> str: ...
    @property
    def model_asked(self) -> str: ...
    @property
    def end_user(self) -> str: ...
    @property
    def queue_ms(self) -> int | None: ...
    @property
    def kind(self) -> Outcome: ...


def insert(ended: Sequence[EndedRequest], *, using: str = "default") -> None:
    """Records all of them or none; one that is recorded already is left as it is. Raises the
    database's error."""
    rows = [row_of(one) for one in ended]
    connection = connections[using]
    with transaction.atomic(using=using), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(POSTGRES_INSERT, [msgspec.json.encode(rows).decode()])
        else:
            cursor.executemany(SQLITE_INSERT, rows)


def row_of(ended: EndedRequest) -> Row:
    """Texts are cut to what the columns hold and numbers bounded: a row that a database refuses
    would hold up its batch."""
    settle = ended.settle
    is_answered = settle.outcome == FINISHED
    return (
        settle.request_id,
        _moment(settle.ended_unix_s),
        _text(settle.account, "account"),
        _text(settle.key, "key"),
        _text(ended.end_user, "end_user") or None,
        _text(ended.model_asked, "model_asked"),
        "" if settle.model == UNKNOWN_MODEL else _text(settle.model, "model"),
        _text(settle.neuron, "neuron"),
        _text(settle.endpoint, "endpoint"),
        _text(settle.client, "client"),
        ended.status,
        ended.kind.value,
        None if is_answered else _text(settle.outcome, "code"),
        _text(ended.error_message, "message"),
        _bounded(ended.queue_ms),
        _bounded(settle.time_to_first_token_ms),
        _bounded(settle.duration_ms),
        _bounded(settle.prompt_tokens),
        _bounded(settle.cached_tokens),
        _bounded(settle.completion_tokens),
        _bounded(settle.reasoning_tokens),
        _bounded(settle.cost_micro_usd),
    )


def _moment(unix_s: float) -> str:
    """As Django stores a time in SQLite: in UTC, without a zone. Connections to PostgreSQL have
    UTC as their zone."""
    return str(EPOCH + timedelta(microseconds=int(unix_s * 1_000_000)))


def _text(text: str, column: str) -> str:
    if len(text) > MAX_CHARS[column]:
        text = text[: MAX_CHARS[column]]
    if text.isascii():
        return text if "\0" not in text else text.replace("\0", "")
    # A client's JSON may hold lone surrogates, which are no text of either database.
    return text.encode("utf-8", "replace").decode().replace("\0", "")


def _bounded(number: int | None) -> int | None:
    return number if number is None else min(max(number, 0), MAX_INT64)
