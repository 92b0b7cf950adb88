"""Writes to hard caps. Only the ledger's writer changes the spent and reserved amounts on them."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from metering.actor import Actor
from metering.errors import MeteringValueError
from metering.models import Account, ApiKey, Budget
from metering.services.audit import audit_entry_create, changes_of, revision_bump, values_of

BUDGET_FIELDS = ("unit", "cap", "window", "window_s")
MAX_CAP = 2**63 - 1
MAX_WINDOW_S = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    unit: str
    cap: int
    window: str = Budget.Window.BALANCE.value
    window_s: int | None = None


def budget_create(
    *, actor: Actor, cap: Cap, account: Account | None = None, key: ApiKey | None = None
) -> Budget:
    """Adds a budget to an account or to a key. Raises ``MeteringValueError``."""
    budget = Budget(
        account=account,
        key=key,
        unit=cap.unit,
        cap=cap.cap,
        window=cap.window,
        window_s=cap.window_s,
    )
    with transaction.atomic():
        budget_check(budget=budget)
        budget.save(force_insert=True)
        audit_entry_create(
            actor=actor,
            action="budget.create",
            object_id=_name_of(budget),
            detail=values_of(budget, BUDGET_FIELDS),
        )
        revision_bump()
    return budget


def budget_update(*, actor: Actor, budget: Budget, changed_fields: list[str]) -> None:
    """Changes the cap and its window; another window begins with the next request. Raises
    ``MeteringValueError``."""
    for name in changed_fields:
        if name not in BUDGET_FIELDS or name == "unit":
            raise MeteringValueError(name, f"{name} cannot be changed: make another budget")
    with transaction.atomic():
        budget_check(budget=budget)
        before = Budget.objects.select_for_update().get(pk=budget.pk)
        changes = changes_of(before, budget, changed_fields)
        if not changes:
            return
        written = list(changes)
        if {"window", "window_s"} & changes.keys():
            budget.window_ends_unix_s = None
            written.append("window_ends_unix_s")
        budget.save(update_fields=written)
        audit_entry_create(
            actor=actor, action="budget.update", object_id=_name_of(budget), detail=changes
        )
        revision_bump()


def budget_remove(*, actor: Actor, budget: Budget) -> None:
    with transaction.atomic():
        name, detail = _name_of(budget), values_of(budget, (*BUDGET_FIELDS, "spent"))
        budget.delete()
        audit_entry_create(actor=actor, action="budget.remove", object_id=name, detail=detail)
        revision_bump()


def budget_check(*, budget: Budget) -> None:
    """Raises ``MeteringValueError``."""
    if (budget.account_id is None) == (budget.key_id is None):
        raise MeteringValueError("account", "A budget is either an account's or a key's")
    if budget.unit not in Budget.Unit.values:
        raise MeteringValueError("unit", f"A unit is one of {', '.join(Budget.Unit.values)}")
    if not 1 <= budget.cap <= MAX_CAP:
        raise MeteringValueError("cap", "A cap is a positive whole number")
    if budget.window not in Budget.Window.values:
        raise MeteringValueError("window", f"A window is one of {', '.join(Budget.Window.values)}")
    if budget.window == Budget.Window.SECONDS:
        if budget.window_s is None or not 1 <= budget.window_s <= MAX_WINDOW_S:
            raise MeteringValueError("window_s", "Name how many seconds the window has")
    elif budget.window_s is not None:
        raise MeteringValueError("window_s", f"A window of a {budget.window} has no seconds")


def _name_of(budget: Budget) -> str:
    return f"{budget.key_id or budget.account_id}/{budget.pk}"
