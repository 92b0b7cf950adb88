"""Reads accounts, keys and people by name, the present amounts of budgets, and usage.

A window begins again in its row only with the next request; reads here show it at once.
``UsageFilter`` limits visible usage; it is always applied. SQLite fails a query whose SUM passes 64
bits, so ``exact_sums`` sums a column in two halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from django.contrib.auth.models import User
from django.db.models import F, Model, Q, QuerySet, Sum
from django.db.models.functions import TruncDate
from django.utils import timezone

from helexa_site.program import program
from metering.api_keys import IMPORTED_MARK, PREFIX_MARK, prefix_of
from metering.errors import MeteringValueError, UnknownNameError
from metering.ledger.book import Window, calendar_end_s
from metering.models import Account, ApiKey, Budget, Membership, Reservation, UsageHour
from metering.money import amount_text, amount_words
from metering.principal import Scope

Row = TypeVar("Row", bound=Model)


def account_find(name: str) -> Account:
    """Raises ``UnknownNameError``."""
    remedy = f"Make one: {program()} accounts create NAME"
    found = Account.objects.filter(name=name)
    return _the_one(found, "account", f"There is no account named {name!r}. {remedy}")


def key_find(prefix: str) -> ApiKey:
    """``prefix``: or the whole key. Raises ``UnknownNameError``, whose message never holds a whole
    key."""
    wanted = prefix_of(prefix) or prefix
    is_prefix = wanted.startswith((PREFIX_MARK, IMPORTED_MARK))
    name = f"the prefix {wanted[:16]!r}" if is_prefix else "that prefix"
    found = ApiKey.objects.select_related("account").filter(prefix=wanted)
    return _the_one(found, "key", f"There is no API key with {name}")


def names_of_keys(keys: Iterable[str]) -> dict[str, str]:
    prefixes = {prefix for prefix in keys if prefix}
    named = ApiKey.objects.filter(prefix__in=prefixes).exclude(name="")
    return dict(named.values_list("prefix", "name"))


def key_status(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if not key.account.enabled:
        return "disabled"
    if key.expires_at is not None and key.expires_at <= timezone.now():
        return "expired"
    return "active"


PLAYGROUND_KEY = {"name": "playground", "scopes": [str(Scope.INFERENCE)]}
"""Version 0.2.0 made a short-lived key like this for each opened tab. The rows stay."""


def without_playground_keys(keys: QuerySet[ApiKey]) -> QuerySet[ApiKey]:
    return keys.exclude(**PLAYGROUND_KEY)


def user_find(name: str) -> User:
    """Raises ``UnknownNameError``."""
    message = f"Nobody logs in as {name!r}: the admin's Users page adds people"
    return _the_one(User.objects.filter(username=name), "user", message)


def member_find(account: str, user: str) -> Membership:
    """Raises ``UnknownNameError``."""
    members = Membership.objects.select_related("user", "account")
    found = members.filter(account=account, user__username=user)
    return _the_one(found, "member", f"{user!r} is not in the account {account!r}")


def budget_find(pk: int) -> Budget:
    """Raises ``UnknownNameError``."""
    return _the_one(Budget.objects.filter(pk=pk), "budget", f"There is no budget {pk}")


def _the_one(found: QuerySet[Row], noun: str, message: str) -> Row:
    row = found.first()
    if row is None:
        raise UnknownNameError(noun, message)
    return row


NEARLY_SPENT_PART = 10
MAX_NEARLY_SPENT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """``window_ends_unix_s``: ``None`` for a balance, and while a window of seconds waits for its
    first request."""

    id: int
    on: str
    """``key`` or ``account``."""
    owner: str
    unit: str
    cap: int
    spent: int
    reserved: int
    left: int
    window: str
    window_s: int | None
    window_ends_unix_s: int | None


def reservations_open() -> int:
    return Reservation.objects.count()


def budgets_nearly_spent(*, now_unix_s: float) -> list[BudgetStatus]:
    spent = Budget.objects.filter(spent__gte=F("cap") - F("cap") / NEARLY_SPENT_PART)
    status = [budget_status(row, now_unix_s=now_unix_s) for row in spent[:MAX_NEARLY_SPENT]]
    return [one for one in status if one.left * NEARLY_SPENT_PART <= one.cap]


def budget_status(budget: Budget, *, now_unix_s: float) -> BudgetStatus:
    spent, ends_s = budget.spent, budget.window_ends_unix_s
    if ends_s is not None and now_unix_s >= ends_s:
        spent, ends_s = 0, None
    if ends_s is None and budget.window in (Window.DAY, Window.MONTH):
        ends_s = calendar_end_s(Window(budget.window), int(now_unix_s))
    return BudgetStatus(
        id=budget.pk,
        on="key" if budget.key_id else "account",
        owner=budget.key_id or budget.account_id or "",
        unit=budget.unit,
        cap=budget.cap,
        spent=spent,
        reserved=budget.reserved,
        left=max(0, budget.cap - spent - budget.reserved),
        window=budget.window,
        window_s=budget.window_s,
        window_ends_unix_s=ends_s,
    )


def budgets_of(*, account: str, key: str, now_unix_s: float) -> list[BudgetStatus]:
    """The key's, then its account's."""
    rows = Budget.objects.filter(Q(account=account) | (Q(key=key) if key else Q(pk=None)))
    status = [budget_status(row, now_unix_s=now_unix_s) for row in rows.order_by("id")]
    return sorted(status, key=lambda budget: budget.on, reverse=True)


def budgets_by_key(*, keys: Iterable[str], now_unix_s: float) -> dict[str, list[BudgetStatus]]:
    found: dict[str, list[BudgetStatus]] = {}
    for status in key_budgets(keys=list(keys), now_unix_s=now_unix_s):
        found.setdefault(status.owner, []).append(status)
    return found


def left_words(budgets: Iterable[BudgetStatus]) -> str:
    """``$0.40 of $1.00 per day``, for people: the amount left of each."""
    return ", ".join(
        f"{amount_text(one.unit, one.left)} of {amount_words(one.unit, one.cap)}{_per(one)}"
        for one in budgets
    )


def _per(budget: BudgetStatus) -> str:
    if budget.window_s is not None:
        return f" per {budget.window_s:,} s"
    return "" if budget.window == Window.BALANCE else f" per {budget.window}"


def key_budgets(*, keys: list[str], now_unix_s: float) -> list[BudgetStatus]:
    rows = Budget.objects.filter(key__in=keys).order_by("key", "id")
    return [budget_status(row, now_unix_s=now_unix_s) for row in rows]


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
    """Without dates, the thirty days up to ``today``. Raises ``MeteringValueError``."""
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
        hour__gte=midnight(period.first), hour__lt=midnight(period.last + timedelta(days=1))
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


def midnight(day: date) -> datetime:
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
    return int(row[f"{column}_high"] or 0) * HALF + int(row[f"{column}_low"] or 0)
