"""Request records that match a filter, newest first, and one by its id.

``RequestFilter.accounts`` limits visible requests; it is always applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from metering.errors import MeteringValueError, UnknownNameError
from metering.ledger.entries import FIRST_ERROR, Outcome
from metering.models import ApiKey, CapturedRequest, RequestRecord

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


def requests_list(
    *, where: RequestFilter, limit: int, before: RequestRecord | None = None
) -> list[RequestRecord]:
    """Returns at most ``limit`` records, newest first, older than ``before``. Raises
    ``MeteringValueError`` for an id that no request can have."""
    records = matching(where)
    if before is not None:
        records = records.filter(at__lte=before.at).exclude(at=before.at, pk__gte=before.pk)
    return list(records.order_by("-at", "-pk")[:limit])


def request_find(request_id: str, *, where: RequestFilter) -> RequestRecord:
    """The request whose id begins so, among those that ``where`` allows. Raises
    ``UnknownNameError``, ``MeteringValueError`` where several do."""
    unknown = UnknownNameError("request", f"There is no record of a request {request_id[:64]!r}")
    try:
        first, last = id_range(request_id)
    except MeteringValueError as error:
        raise unknown from error
    found = _visible(where).filter(request_id__gte=first, request_id__lte=last)[:2]
    match list(found):
        case [record]:
            return record
        case []:
            raise unknown
        case _:
            raise MeteringValueError(
                "id", f"{request_id!r} is the beginning of several ids: more digits are needed"
            )


def request_before(request_id: str, *, where: RequestFilter) -> RequestRecord | None:
    """The last request of the page before; ``None`` without an id. Raises
    ``MeteringValueError``."""
    try:
        return request_find(request_id, where=where) if request_id else None
    except (UnknownNameError, MeteringValueError) as error:
        raise MeteringValueError("before", str(error)) from error


def request_is_captured(record: RequestRecord) -> bool:
    return CapturedRequest.objects.filter(request_id=record.request_id).exists()


def key_names(records: Iterable[RequestRecord]) -> dict[str, str]:
    return names_of_keys(record.key for record in records)


def names_of_keys(keys: Iterable[str]) -> dict[str, str]:
    prefixes = {prefix for prefix in keys if prefix}
    named = ApiKey.objects.filter(prefix__in=prefixes).exclude(name="")
    return dict(named.values_list("prefix", "name"))


def _visible(where: RequestFilter) -> QuerySet[RequestRecord]:
    records = RequestRecord.objects.all()
    if where.accounts is not None:
        records = records.filter(account__in=where.accounts)
    if where.own_key:
        records = records.filter(key=where.own_key)
    return records


def matching(where: RequestFilter) -> QuerySet[RequestRecord]:
    """The matching records, in no order. Raises ``MeteringValueError`` for an id that no request
    can have."""
    records = _visible(where).filter(
        **{
            name: value
            for name in ("account", "end_user", "model", "neuron", "code")
            if (value := getattr(where, name))
        }
    )
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
    if where.id_prefix:
        first, last = id_range(where.id_prefix)
        records = records.filter(request_id__gte=first, request_id__lte=last)
    return records


def _of_key(records: QuerySet[RequestRecord], word: str) -> QuerySet[RequestRecord]:
    """Filters by the key and also by its account, which has the index. A key is never deleted."""
    keys = dict(
        ApiKey.objects.filter(Q(prefix=word) | Q(name=word)).values_list("prefix", "account_id")
    )
    if not keys:
        return records.none()
    return records.filter(account__in=set(keys.values()), key__in=list(keys))


def id_range(prefix: str) -> tuple[UUID, UUID]:
    """The least and the greatest id that begin with ``prefix``. Raises ``MeteringValueError``."""
    digits = prefix.strip().lower().replace("-", "")
    if not ID_PREFIX.fullmatch(digits):
        raise MeteringValueError("id", f"{prefix[:64]!r} is not the beginning of a request's id")
    if len(digits) < MIN_ID_DIGITS:
        raise MeteringValueError(
            "id", f"{digits!r} is too short: at least {MIN_ID_DIGITS} digits are needed"
        )
    return (
        UUID(hex=digits.ljust(NUM_ID_DIGITS, "0")),
        UUID(hex=digits.ljust(NUM_ID_DIGITS, "f")),
    )
