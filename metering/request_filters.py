"""Request records by a filter or their id, their captured bodies, and their fields. The page, the
REST API and the command share the filter's words. ``RequestFilter.accounts`` limits visible
requests; it is always applied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from metering.audit import Actor, audit_entry_create
from metering.errors import MeteringValueError, UnknownNameError
from metering.ledger.entries import FIRST_ERROR, Outcome
from metering.models import ApiKey, CapturedRequest, RequestRecord
from metering.output import csv_text
from metering.selectors import names_of_keys

OUTCOMES = tuple(outcome.value for outcome in Outcome)
NAMES = ("account", "end_user", "model", "neuron", "code")
FILTERS = ("account", "key", *NAMES[1:], "outcome", "status", "since", "until", "id")
AGO = re.compile(r"([0-9]{1,6})(m|h|d)")
UNITS = {"m": "minutes", "h": "hours", "d": "days"}
FIRST_YEAR, END_YEAR = 2000, 9999
NUM_ID_DIGITS = 32
ID_PREFIX = re.compile(r"[0-9a-f]{1,32}")
MIN_ID_DIGITS = 8
"""Ids begin with their time: those of one minute share eight digits. Shorter prefixes match too
many rows to sort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """``None`` and empty texts do not narrow. ``key`` is a prefix, or the name of one key or of
    several. ``since`` is included, ``until`` is not."""

    accounts: frozenset[str] | None = None
    own_key: str = ""
    """A key that sees its own requests alone."""
    account: str = ""
    key: str = ""
    end_user: str = ""
    model: str = ""
    neuron: str = ""
    status: int | None = None
    code: str = ""
    outcome: str = ""
    since: datetime | None = None
    until: datetime | None = None
    id_prefix: str = ""


def filter_of(words: Mapping[str, str], *, visible: RequestFilter, now: datetime) -> RequestFilter:
    """Empty words do not narrow. Raises ``MeteringValueError`` naming the parameter."""
    given: dict[str, Any] = {name: words.get(name, "").strip() for name in FILTERS}
    if given["outcome"] and given["outcome"] not in OUTCOMES:
        raise MeteringValueError(
            "outcome", f"{given['outcome']!r} is none of {', '.join(OUTCOMES)}"
        )
    return replace(
        visible,
        **{name: given[name] for name in (*NAMES, "key", "outcome")},
        status=_status(given["status"]),
        since=_moment("since", given["since"], now),
        until=_moment("until", given["until"], now),
        id_prefix=given["id"],
    )


def _status(word: str) -> int | None:
    if not word:
        return None
    if not (word.isascii() and word.isdigit() and len(word) <= 3):
        raise MeteringValueError("status", f"{word!r} is not an HTTP status, as in 503")
    return int(word)


def _moment(name: str, word: str, now: datetime) -> datetime | None:
    """``2h`` ago, or a date and time in ISO 8601; without a zone it is in UTC."""
    if not word:
        return None
    if ago := AGO.fullmatch(word):
        return now - timedelta(**{UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise MeteringValueError(
            name, f"{word!r} is not a time, as in 2026-01-31T12:00 or 2h (ago)"
        ) from None
    if not FIRST_YEAR <= moment.year < END_YEAR:
        raise MeteringValueError(name, f"{word!r} is out of range")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def requests_list(
    *, where: RequestFilter, limit: int, before: RequestRecord | None = None
) -> list[RequestRecord]:
    """Newest first, older than ``before``. Raises ``MeteringValueError`` for an impossible id."""
    records = matching(where)
    if before is not None:
        records = records.filter(at__lte=before.at).exclude(at=before.at, pk__gte=before.pk)
    return list(records.order_by("-at", "-pk")[:limit])


def request_find(request_id: str, *, where: RequestFilter) -> RequestRecord:
    """``request_id``: its beginning is enough. Raises ``UnknownNameError``, or
    ``MeteringValueError`` where several begin so."""
    unknown = UnknownNameError("request", f"There is no record of a request {request_id[:64]!r}")
    try:
        found = list(_of_ids(_visible(where), request_id)[:2])
    except MeteringValueError as error:
        raise unknown from error
    if len(found) > 1:
        raise MeteringValueError(
            "id", f"{request_id!r} is the beginning of several ids: more digits are needed"
        )
    if not found:
        raise unknown
    return found[0]


def request_before(request_id: str, *, where: RequestFilter) -> RequestRecord | None:
    """The last request of the page before. Raises ``MeteringValueError``."""
    try:
        return request_find(request_id, where=where) if request_id else None
    except (UnknownNameError, MeteringValueError) as error:
        raise MeteringValueError("before", str(error)) from error


def matching(where: RequestFilter) -> QuerySet[RequestRecord]:
    """In no order. Raises ``MeteringValueError`` for an impossible id."""
    equal = {name: value for name in NAMES if (value := getattr(where, name))}
    records = _visible(where).filter(**equal)
    if where.status is not None:
        records = records.filter(status=where.status)
    if where.outcome == Outcome.ANSWERED:
        records = records.filter(code__isnull=True)  # as nearly all are, without an index
    elif where.outcome:
        records = records.filter(code__isnull=False, outcome=where.outcome)
    if (where.status or 0) >= FIRST_ERROR:
        records = records.filter(code__isnull=False)  # as the partial index has it
    if where.key:
        records = _of_key(records, where.key)
    if where.since is not None:
        records = records.filter(at__gte=where.since)
    if where.until is not None:
        records = records.filter(at__lt=where.until)
    return _of_ids(records, where.id_prefix) if where.id_prefix else records


def _visible(where: RequestFilter) -> QuerySet[RequestRecord]:
    records = RequestRecord.objects.all()
    if where.accounts is not None:
        records = records.filter(account__in=where.accounts)
    return records.filter(key=where.own_key) if where.own_key else records


def _of_key(records: QuerySet[RequestRecord], word: str) -> QuerySet[RequestRecord]:
    """Filters by the key and also by its account, which has the index. A key is never deleted."""
    keys = dict(
        ApiKey.objects.filter(Q(prefix=word) | Q(name=word)).values_list("prefix", "account_id")
    )
    if not keys:
        return records.none()
    return records.filter(account__in=set(keys.values()), key__in=list(keys))


def _of_ids(records: QuerySet[RequestRecord], prefix: str) -> QuerySet[RequestRecord]:
    digits = prefix.strip().lower().replace("-", "")
    if not ID_PREFIX.fullmatch(digits):
        raise MeteringValueError("id", f"{prefix[:64]!r} is not the beginning of a request's id")
    if len(digits) < MIN_ID_DIGITS:
        raise MeteringValueError(
            "id", f"{digits!r} is too short: at least {MIN_ID_DIGITS} digits are needed"
        )
    first, last = (UUID(hex=digits.ljust(NUM_ID_DIGITS, digit)) for digit in "0f")
    return records.filter(request_id__gte=first, request_id__lte=last)


def captured_request_read(*, actor: Actor, record: RequestRecord) -> CapturedRequest | None:
    """The read is audited. The caller has checked the permission."""
    with transaction.atomic():
        captured = CapturedRequest.objects.filter(request_id=record.request_id).first()
        if captured is not None:
            audit_entry_create(
                actor=actor,
                action="request.read_bodies",
                object_id=record.request_id.hex,
                detail={"account": record.account, "key": record.key},
            )
    return captured


COLUMNS = (
    *("id", "at", "account", "key", "key_name", "end_user", "model_asked", "model", "neuron"),
    *("endpoint", "client", "status", "outcome", "code", "message"),
    *("queue_ms", "time_to_first_token_ms", "duration_ms"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("cost_micro_usd", "is_usage_estimated", "targets_tried", "unit", "num_units"),
)
MAX_CSV_ROWS = 10_000


def all_fields(records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    names = names_of_keys(record.key for record in records)
    return [_fields_of(record, names) for record in records]


def _fields_of(record: RequestRecord, names: dict[str, str]) -> dict[str, Any]:
    own = {
        "id": record.request_id.hex,
        "at": record.at.isoformat(),
        "key_name": names.get(record.key, ""),
    }
    return {name: own[name] if name in own else getattr(record, name) for name in COLUMNS}


def requests_csv(records: Sequence[RequestRecord]) -> str:
    return csv_text(COLUMNS, (fields.values() for fields in all_fields(records)))
