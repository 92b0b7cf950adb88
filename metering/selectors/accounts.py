"""Reads accounts and keys by name, and the present amounts of budgets.

A window begins again in its row only with the next request; reads here show it at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db.models import F, Q

from helexa_site.program import program
from metering.errors import UnknownNameError
from metering.keys.api_key import IMPORTED_MARK, PREFIX_MARK, prefix_of
from metering.ledger.book import Window, calendar_end_s
from metering.models import Account, ApiKey, Budget, Membership, Reservation
from metering.money import amount_text, amount_words


def account_find(name: str) -> Account:
    """Raises ``UnknownNameError``."""
    account = Account.objects.filter(name=name).first()
    if account is None:
        raise UnknownNameError(
            "account",
            f"There is no account named {name!r}. Make one: {program()} accounts create NAME",
        )
    return account


def key_find(prefix: str) -> ApiKey:
    """Finds a key by its prefix, or by the whole key, of which only the prefix is used. Raises
    ``UnknownNameError``, whose message never holds a whole key."""
    wanted = prefix_of(prefix) or prefix
    key = ApiKey.objects.select_related("account").filter(prefix=wanted).first()
    if key is None:
        is_prefix = wanted.startswith((PREFIX_MARK, IMPORTED_MARK))
        name = f"the prefix {wanted[:16]!r}" if is_prefix else "that prefix"
        raise UnknownNameError("key", f"There is no API key with {name}")
    return key


def user_find(name: str) -> User:
    """Raises ``UnknownNameError``."""
    user = User.objects.filter(username=name).first()
    if user is None:
        raise UnknownNameError(
            "user", f"Nobody logs in as {name!r}: the admin's Users page adds people"
        )
    return user


def member_find(account: str, user: str) -> Membership:
    """Raises ``UnknownNameError``."""
    members = Membership.objects.select_related("user", "account")
    member = members.filter(account=account, user__username=user).first()
    if member is None:
        raise UnknownNameError("member", f"{user!r} is not in the account {account!r}")
    return member


def budget_find(pk: int) -> Budget:
    """Raises ``UnknownNameError``."""
    budget = Budget.objects.filter(pk=pk).first()
    if budget is None:
        raise UnknownNameError("budget", f"There is no budget {pk}")
    return budget


NEARLY_SPENT_PART = 10
MAX_NEARLY_SPENT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """The amounts of a budget, in ``unit``: tokens or micro-USD. ``window_ends_unix_s`` is ``None``
    for a balance, and while a window of seconds waits for its first request."""

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
    """The budgets with a tenth or less left, at most ``MAX_NEARLY_SPENT`` of them."""
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
    """The budgets of a request with this key: the key's, then its account's."""
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
