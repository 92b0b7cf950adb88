"""Inserts request records, a batch in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from django.db import connections, transaction

from metering.ledger.entries import FINISHED, RecordFields, Settle
from metering.models import RequestRecord
from metering.request_records import captures
from metering.series.figures import changes_of
from metering.series.store import figures_add
from metering.sql import Row, bounded, insert_rows, stored_moment, stored_text

if TYPE_CHECKING:
    from inference.gateway.request.outcome import RequestOutcome

UNKNOWN_MODEL = "-"
TABLE = RequestRecord._meta.db_table
ONCE = "ON CONFLICT (request_id) DO NOTHING RETURNING request_id"
COLUMNS = (
    *("request_id", "at", "account", "key", "end_user", "model_asked", "model", "neuron"),
    *("endpoint", "client", "status", "outcome", "code", "message"),
    *("queue_ms", "time_to_first_token_ms", "duration_ms"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("cost_micro_usd", "is_usage_estimated", "targets_tried", "unit", "num_units"),
)
"""In the order of ``row_of``."""
MAX_CHARS: dict[str, int] = {
    name: cast(Any, RequestRecord._meta.get_field(name)).max_length for name in COLUMNS
}


class Record(NamedTuple):
    settle: Settle
    facts: RecordFields | RequestOutcome


def insert(ended: Sequence[RequestOutcome], *, using: str = "default") -> None:
    """Records all of them or none, with their captured bodies. Of billed ones only the bodies.
    Raises the database's error."""
    with transaction.atomic(using=using):
        insert_records([Record(one.settle, one) for one in ended if not one.is_billed], using=using)
        captured = [(one.settle, one.captured) for one in ended if one.captured is not None]
        if captured:
            captures.insert(captured, using=using)


def insert_records(records: Iterable[Record], *, using: str) -> None:
    """Records all of them or none, and counts them in the series; existing ones stay unchanged.
    Raises the database's error."""
    by_id = {one.settle.request_id: one for one in records}
    if not by_id:
        return
    rows = [row_of(*record) for record in by_id.values()]
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        insert_rows(cursor, TABLE, COLUMNS, rows, ONCE)
        new = [by_id[str(request_id).replace("-", "")] for (request_id,) in cursor.fetchall()]
        figures_add(changes_of([(one.settle, one.facts.kind) for one in new]), using=using)


def record_fields(facts: RequestOutcome) -> RecordFields:
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
