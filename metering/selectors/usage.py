"""Usage by day, model, key or account: sums of the ledger's hours.

``UsageFilter`` limits visible usage; it is always applied. SQLite fails a query whose SUM passes 64
bits, so a column is summed in two halves: see ``exact_sums``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any

from django.db.models import F, QuerySet, Sum
from django.db.models.functions import TruncDate

from metering.errors import MeteringValueError
from metering.models import UsageHour

DEFAULT_DAYS = 30


class UsageGroup(StrEnum):
    DAY = "day"
    MODEL = "model"
    KEY = "key"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePeriod:
    """Whole days in UTC, the last one included."""

    first: date
    last: date


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """``None`` does not narrow."""

    accounts: frozenset[str] | None = None
    key: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSums:
    requests: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cost_micro_usd: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """``name``: the day, the model, the key's prefix or the account."""

    name: str
    sums: UsageSums


SUMS = tuple(field.name for field in fields(UsageSums))


def period_of(first: str | None, last: str | None, *, today: date) -> UsagePeriod:
    """Reads dates as in 2026-01-31; without them, returns the thirty days up to today. Raises
    ``MeteringValueError`` naming ``from`` or ``to``."""
    last_day = _date("to", last) if last else today
    first_day = _date("from", first) if first else last_day - timedelta(days=DEFAULT_DAYS - 1)
    if first_day > last_day:
        raise MeteringValueError("from", f"{first_day} comes after {last_day}")
    return UsagePeriod(first=first_day, last=last_day)


def usage_list(*, by: UsageGroup, period: UsagePeriod, where: UsageFilter) -> list[UsageRow]:
    """Days in their order, everything else by cost and tokens, most first."""
    is_by_day = by is UsageGroup.DAY
    name = TruncDate("hour", tzinfo=UTC) if is_by_day else F(by.value)
    grouped: Any = _hours(period, where).annotate(name=name).values("name")
    found = grouped.annotate(**exact_sums(SUMS)).order_by("name")
    rows = [UsageRow(name=str(row["name"]), sums=_sums_of(row)) for row in found]
    return rows if is_by_day else sorted(rows, key=_by_cost)


def usage_total(*, period: UsagePeriod, where: UsageFilter) -> UsageSums:
    return _sums_of(_hours(period, where).aggregate(**exact_sums(SUMS)))


def _hours(period: UsagePeriod, where: UsageFilter) -> QuerySet[UsageHour]:
    rows = UsageHour.objects.filter(
        hour__gte=_midnight(period.first), hour__lt=_midnight(period.last + timedelta(days=1))
    ).order_by()
    if where.accounts is not None:
        rows = rows.filter(account__in=where.accounts)
    if where.key is not None:
        rows = rows.filter(key=where.key)
    if where.model is not None:
        rows = rows.filter(model=where.model)
    return rows


def _sums_of(row: dict[str, Any]) -> UsageSums:
    return UsageSums(**{name: exact_sum(row, name) for name in SUMS})


def _by_cost(row: UsageRow) -> tuple[int, int]:
    return -row.sums.cost_micro_usd, -row.sums.completion_tokens


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _date(field: str, word: str) -> date:
    try:
        day = date.fromisoformat(word)
    except ValueError:
        raise MeteringValueError(field, f"{word!r} is not a date, as in 2026-01-31") from None
    if not 2000 <= day.year < 9999:
        raise MeteringValueError(field, f"{word!r} is out of range")
    return day


HALF = 2**32


def exact_sums(columns: Iterable[str]) -> dict[str, Sum]:
    aggregates: dict[str, Sum] = {}
    for column in columns:
        aggregates[f"{column}_high"] = Sum(F(column) / HALF)
        aggregates[f"{column}_low"] = Sum(F(column) % HALF)
    return aggregates


def exact_sum(row: Mapping[str, Any], column: str) -> int:
    """One column's sum, from a row that has the aggregates; 0 without rows."""
    return int(row[f"{column}_high"] or 0) * HALF + int(row[f"{column}_low"] or 0)
