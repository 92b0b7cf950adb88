"""Every write to accounts, memberships, budgets and keys by an actor; each leaves an audit entry.
Only the ledger's writer changes the spent and reserved amounts of budgets. A key is never deleted:
the ledger names it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Model
from django.utils import timezone

from fleet.models import Alias, CatalogueModel
from metering.api_keys import (
    NewKey,
    digest_of,
    digest_secret,
    import_problem,
    imported_prefix,
    make_key,
)
from metering.audit import Actor, changes_of, values_of, write_record
from metering.errors import MeteringValueError
from metering.models import (
    ACCOUNT_NAME,
    Account,
    ApiKey,
    Budget,
    Membership,
)
from metering.principal import BUILT_IN_ACCOUNTS, LIMIT_FIELDS, Scope

ACCOUNT_FIELDS = ("description", "weight", "enabled", "capture_until", *LIMIT_FIELDS)
BUDGET_FIELDS = ("unit", "cap", "window", "window_s")
KEY_FIELDS = (
    *("name", "scopes", "model_names", "names_end_user", "may_leave_network"),
    *("expires_at", "capture_until"),
    *LIMIT_FIELDS,
)
DEFAULT_SCOPES = (Scope.INFERENCE, Scope.USAGE_READ)
MAX_WEIGHT = 1000
MAX_CAPTURE = timedelta(days=7)
MAX_CAP = 2**63 - 1
MAX_WINDOW_S = 2**31 - 1
MAX_NAME_CHARS = 100


def account_create(*, actor: Actor, name: str, **columns: Any) -> Account:
    """Raises ``MeteringValueError``."""
    account = Account(name=name, **columns)
    account_check(account=account)
    with transaction.atomic():
        try:
            with transaction.atomic():
                account.save(force_insert=True)
        except IntegrityError:
            message = f"There is an account named {name!r} already"
            raise MeteringValueError("name", message) from None
        detail = values_of(account, ACCOUNT_FIELDS)
        write_record(actor=actor, action="account.create", object_id=name, detail=detail)
    return account


def account_update(*, actor: Actor, account: Account, changed_fields: list[str]) -> None:
    """A disabled account's keys are refused from then on. Raises ``MeteringValueError``."""
    for name in changed_fields:
        if name not in ACCOUNT_FIELDS:
            raise MeteringValueError(name, f"{name} cannot be changed")
    with transaction.atomic():
        account_check(account=account)
        _row_update(actor, "account.update", account.name, account, changed_fields)


def account_delete(*, actor: Actor, account: Account) -> None:
    """Deletes an account, if it never had a key: the ledger's entries must stay explained. Raises
    ``MeteringValueError``."""
    with transaction.atomic():
        if account.name in BUILT_IN_ACCOUNTS:
            raise MeteringValueError("name", f"{account.name} is built in: disable it instead")
        if ApiKey.objects.filter(account=account).exists():
            raise MeteringValueError("name", f"{account.name} has API keys: disable it instead")
        name = account.name
        for membership in account.memberships.all():
            membership_remove(actor=actor, membership=membership)
        for budget in account.budgets.all():
            budget_remove(actor=actor, budget=budget)
        account.delete()
        write_record(actor=actor, action="account.delete", object_id=name)


def account_check(*, account: Account) -> None:
    """Raises ``MeteringValueError``."""
    try:
        ACCOUNT_NAME(account.name)
    except ValidationError as error:
        raise MeteringValueError("name", f"{account.name!r}: {error.messages[0]}") from None
    if len(account.name) > 64:
        raise MeteringValueError("name", "A name has at most 64 characters")
    if not 1 <= account.weight <= MAX_WEIGHT:
        raise MeteringValueError("weight", f"A weight is between 1 and {MAX_WEIGHT}")
    _limits_check(account)


def _limits_check(row: Account | ApiKey) -> None:
    """A time of capturing that was stored before stays."""
    for name in LIMIT_FIELDS:
        value = getattr(row, name)
        if value is not None and not 1 <= value < 2**31:
            raise MeteringValueError(name, "A limit is a positive number; none is no limit")
    until = row.capture_until
    if until is None or type(row).objects.filter(pk=row.pk, capture_until=until).exists():
        return
    if not timedelta() < until - timezone.now() <= MAX_CAPTURE:
        raise MeteringValueError(
            "capture_until", f"Bodies are captured for at most {MAX_CAPTURE.days} days from now"
        )


def membership_set(
    *, actor: Actor, account: Account, user: AbstractBaseUser, role: str
) -> Membership:
    """Raises ``MeteringValueError``."""
    if role not in Membership.Role.values:
        raise MeteringValueError("role", f"{role!r} is none of {', '.join(Membership.Role.values)}")
    with transaction.atomic():
        before = (
            Membership.objects.select_for_update().filter(account=account, user=user.pk).first()
        )
        if before is not None and before.role == role:
            return before
        membership, _ = Membership.objects.update_or_create(
            account=account, user_id=user.pk, defaults={"role": role}
        )
        write_record(
            actor=actor,
            action="membership.set",
            object_id=f"{account.name}/{user.get_username()}",
            detail={"role": [before.role if before else None, role]},
        )
    return membership


def membership_remove(*, actor: Actor, membership: Membership) -> None:
    with transaction.atomic():
        name = f"{membership.account_id}/{membership.user.get_username()}"
        detail = {"role": membership.role}
        membership.delete()
        write_record(actor=actor, action="membership.remove", object_id=name, detail=detail)


def budget_create(*, actor: Actor, budget: Budget) -> Budget:
    """Raises ``MeteringValueError``."""
    with transaction.atomic():
        budget_check(budget=budget)
        budget.save(force_insert=True)
        write_record(
            actor=actor,
            action="budget.create",
            object_id=_name_of(budget),
            detail=values_of(budget, BUDGET_FIELDS),
        )
    return budget


def budget_update(*, actor: Actor, budget: Budget, changed_fields: list[str]) -> None:
    """Another window begins with the next request. Raises ``MeteringValueError``."""
    for name in changed_fields:
        if name not in BUDGET_FIELDS or name == "unit":
            raise MeteringValueError(name, f"{name} cannot be changed: make another budget")
    with transaction.atomic():
        budget_check(budget=budget)
        changes = _row_update(actor, "budget.update", _name_of(budget), budget, changed_fields)
        if {"window", "window_s"} & changes.keys():
            budget.window_ends_unix_s = None
            budget.save(update_fields=["window_ends_unix_s"])


def budget_remove(*, actor: Actor, budget: Budget) -> None:
    with transaction.atomic():
        name, detail = _name_of(budget), values_of(budget, (*BUDGET_FIELDS, "spent"))
        budget.delete()
        write_record(actor=actor, action="budget.remove", object_id=name, detail=detail)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedKey:
    """``key`` is to be shown once: it is not stored."""

    row: ApiKey
    key: str = field(repr=False)


def key_create(
    *,
    actor: Actor,
    account: Account,
    scopes: Iterable[str] = DEFAULT_SCOPES,
    caps: Iterable[Budget] = (),
    imported: str | None = None,
    **columns: Any,
) -> CreatedKey:
    """``imported``: an existing key. Raises ``MeteringValueError``."""
    made = make_key() if imported is None else _imported(imported)
    row = ApiKey(
        prefix=made.prefix,
        digest=digest_of(made.key, digest_secret(settings.SECRET_KEY)),
        account=account,
        scopes=list(scopes),
        created_by=actor[:150],
        **columns,
    )
    with transaction.atomic():
        key_check(key=row)
        row.save(force_insert=True)
        write_record(
            actor=actor,
            action="key.create",
            object_id=row.prefix,
            detail={"account": account.name} | values_of(row, KEY_FIELDS),
        )
        for cap in caps:
            cap.key = row
            budget_create(actor=actor, budget=cap)
    return CreatedKey(row=row, key=made.key)


def key_update(*, actor: Actor, key: ApiKey, changed_fields: list[str]) -> None:
    """Raises ``MeteringValueError``."""
    for name in changed_fields:
        if name not in KEY_FIELDS:
            raise MeteringValueError(name, f"{name} cannot be changed: make another key")
    with transaction.atomic():
        key_check(key=key)
        _row_update(actor, "key.update", key.prefix, key, changed_fields)


def key_revoke(*, actor: Actor, key: ApiKey) -> bool:
    """On every gateway within a second. ``False``: it was revoked before."""
    with transaction.atomic():
        now = timezone.now()
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=now)
        if not revoked:
            return False
        key.revoked_at = now
        write_record(actor=actor, action="key.revoke", object_id=key.prefix)
    return True


def key_check(*, key: ApiKey) -> None:
    """Normalises scopes and models. Raises ``MeteringValueError``."""
    if len(key.name) > MAX_NAME_CHARS or not key.name.isprintable():
        raise MeteringValueError("name", f"A name has at most {MAX_NAME_CHARS} printable letters")
    key.scopes = _scopes(key.scopes)
    stored = ApiKey.objects.filter(pk=key.pk).first() or ApiKey()
    key.model_names = _model_names(key.model_names, stored.model_names)
    _limits_check(key)
    if key.expires_at is not None and key.expires_at <= timezone.now():
        _ensure_kept(key.expires_at, stored.expires_at)


def _ensure_kept(expires_at: datetime, stored: datetime | None) -> None:
    """An expired key may still be renamed. Forms have whole seconds."""
    if stored is None or abs(stored - expires_at) >= timedelta(seconds=1):
        raise MeteringValueError(
            "expires_at", "The key would have expired already: revoke it to end it now"
        )


def _imported(key: str) -> NewKey:
    if problem := import_problem(key):
        raise MeteringValueError("key", problem)
    prefix = imported_prefix(key, digest_secret(settings.SECRET_KEY))
    if ApiKey.objects.filter(prefix=prefix).exists():
        raise MeteringValueError("key", f"This key is there already, as {prefix}")
    return NewKey(prefix=prefix, key=key)


def _scopes(words: Iterable[str]) -> list[str]:
    given = set(words)
    known = [scope.value for scope in Scope]
    if unknown := sorted(given - set(known)):
        raise MeteringValueError("scopes", f"{unknown[0]!r} is none of {', '.join(known)}")
    if not given:
        raise MeteringValueError("scopes", "A key without a scope is good for nothing")
    return [word for word in known if word in given]


def _model_names(words: Iterable[str], stored: Collection[str]) -> list[str]:
    names, known = set(words), set(stored)
    for rows in (Alias, CatalogueModel):
        known.update(rows.objects.filter(name__in=names).values_list("name", flat=True))
    if unknown := sorted(names - known):
        raise MeteringValueError("model_names", f"There is no model named {unknown[0]!r}")
    return sorted(names)


def _row_update(
    actor: Actor, action: str, object_id: str, row: Model, changed_fields: list[str]
) -> dict[str, list[Any]]:
    """Call it in a transaction. Returns the changes."""
    before = type(row)._default_manager.select_for_update().get(pk=row.pk)
    if changes := changes_of(before, row, changed_fields):
        row.save(update_fields=list(changes))
        write_record(actor=actor, action=action, object_id=object_id, detail=changes)
    return changes
