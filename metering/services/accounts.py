"""Writes to accounts and memberships; capturing of bodies, and reads of these."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from metering.actor import Actor
from metering.errors import MeteringValueError
from metering.models import (
    ACCOUNT_NAME,
    Account,
    ApiKey,
    CapturedRequest,
    LimitedModel,
    Membership,
    RequestRecord,
)
from metering.principal import BUILT_IN_ACCOUNTS, LIMIT_FIELDS
from metering.services.audit import audit_entry_create, revision_bump, row_update, values_of
from metering.services.budgets import budget_remove

ACCOUNT_FIELDS = ("description", "weight", "enabled", "capture_until", *LIMIT_FIELDS)
MAX_WEIGHT = 1000


def account_create(
    *,
    actor: Actor,
    name: str,
    description: str = "",
    weight: int = 1,
    enabled: bool = True,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    max_concurrent: int | None = None,
    capture_until: datetime | None = None,
) -> Account:
    """Raises ``MeteringValueError``."""
    account = Account(
        name=name,
        description=description,
        weight=weight,
        enabled=enabled,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        max_concurrent=max_concurrent,
        capture_until=capture_until,
    )
    account_check(account=account)
    with transaction.atomic():
        try:
            with transaction.atomic():
                account.save(force_insert=True)
        except IntegrityError:
            message = f"There is an account named {name!r} already"
            raise MeteringValueError("name", message) from None
        detail = values_of(account, ACCOUNT_FIELDS)
        audit_entry_create(actor=actor, action="account.create", object_id=name, detail=detail)
        revision_bump()
    return account


def account_update(*, actor: Actor, account: Account, changed_fields: list[str]) -> None:
    """Writes the named fields of an edited row; a disabled account's keys are refused from then
    on. Raises ``MeteringValueError``."""
    for name in changed_fields:
        if name not in ACCOUNT_FIELDS:
            raise MeteringValueError(name, f"{name} cannot be changed")
    with transaction.atomic():
        account_check(account=account)
        row_update(
            actor=actor,
            action="account.update",
            object_id=account.name,
            row=account,
            changed_fields=changed_fields,
        )


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
        audit_entry_create(actor=actor, action="account.delete", object_id=name)
        revision_bump()


def account_check(*, account: Account) -> None:
    """Raises ``MeteringValueError`` for an invalid field."""
    try:
        ACCOUNT_NAME(account.name)
    except ValidationError as error:
        raise MeteringValueError("name", f"{account.name!r}: {error.messages[0]}") from None
    if len(account.name) > 64:
        raise MeteringValueError("name", "A name has at most 64 characters")
    if not 1 <= account.weight <= MAX_WEIGHT:
        raise MeteringValueError("weight", f"A weight is between 1 and {MAX_WEIGHT}")
    limits_check(row=account)
    capture_check(row=account)


def limits_check(*, row: LimitedModel) -> None:
    """Raises ``MeteringValueError``."""
    for name in LIMIT_FIELDS:
        value = getattr(row, name)
        if value is not None and not 1 <= value < 2**31:
            raise MeteringValueError(name, "A limit is a positive number; none is no limit")


def membership_set(
    *, actor: Actor, account: Account, user: AbstractBaseUser, role: str
) -> Membership:
    """Adds the person or changes their role. Raises ``MeteringValueError``."""
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
        audit_entry_create(
            actor=actor,
            action="membership.set",
            object_id=f"{account.name}/{user.get_username()}",
            detail={"role": [before.role if before else None, role]},
        )
        revision_bump()
    return membership


def membership_remove(*, actor: Actor, membership: Membership) -> None:
    with transaction.atomic():
        name = f"{membership.account_id}/{membership.user.get_username()}"
        detail = {"role": membership.role}
        membership.delete()
        audit_entry_create(actor=actor, action="membership.remove", object_id=name, detail=detail)
        revision_bump()


MAX_CAPTURE = timedelta(days=7)


def capture_check(*, row: Account | ApiKey) -> None:
    """A time that was stored before stays. Raises ``MeteringValueError``."""
    until = row.capture_until
    if until is None or type(row).objects.filter(pk=row.pk, capture_until=until).exists():
        return
    now = timezone.now()
    if not now < until <= now + MAX_CAPTURE:
        raise MeteringValueError(
            "capture_until", f"Bodies are captured for at most {MAX_CAPTURE.days} days from now"
        )


def captured_request_read(*, actor: Actor, record: RequestRecord) -> CapturedRequest | None:
    """The captured bodies, for a permitted actor; the read is audited. ``None``: there are none
    (any more)."""
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
