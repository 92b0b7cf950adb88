"""Writes to API keys. A key is never deleted: the ledger names it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from fleet.models import Alias, CatalogueModel
from metering.actor import Actor
from metering.api_keys import (
    NewKey,
    digest_of,
    digest_secret,
    import_problem,
    imported_prefix,
    make_key,
)
from metering.errors import MeteringValueError
from metering.models import Account, ApiKey
from metering.principal import LIMIT_FIELDS, RateLimits, Scope
from metering.services.accounts import capture_check, limits_check
from metering.services.audit import audit_entry_create, revision_bump, row_update, values_of
from metering.services.budgets import Cap, budget_create

DEFAULT_SCOPES = (Scope.INFERENCE, Scope.USAGE_READ)
KEY_FIELDS = (
    *("name", "scopes", "model_names", "names_end_user", "may_leave_network"),
    *("expires_at", "capture_until"),
    *LIMIT_FIELDS,
)
MAX_NAME_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedKey:
    """``key`` is to be shown once: it is not stored."""

    row: ApiKey
    key: str = field(repr=False)


def key_create(
    *,
    actor: Actor,
    account: Account,
    name: str = "",
    scopes: Iterable[str] = DEFAULT_SCOPES,
    model_names: Iterable[str] = (),
    names_end_user: bool = False,
    may_leave_network: bool = True,
    expires_at: datetime | None = None,
    capture_until: datetime | None = None,
    limits: RateLimits | None = None,
    caps: Iterable[Cap] = (),
    imported: str | None = None,
) -> CreatedKey:
    """``model_names`` may be aliases; none means all models. ``caps`` become budgets of the key.
    ``imported``: an existing key; ``None``: makes a new one. Raises ``MeteringValueError``."""
    made = make_key() if imported is None else _imported(imported)
    row = ApiKey(
        prefix=made.prefix,
        digest=digest_of(made.key, digest_secret(settings.SECRET_KEY)),
        account=account,
        name=name,
        scopes=list(scopes),
        model_names=list(model_names),
        names_end_user=names_end_user,
        may_leave_network=may_leave_network,
        expires_at=expires_at,
        capture_until=capture_until,
        created_by=str(actor)[:150],
        **asdict(limits or RateLimits()),
    )
    with transaction.atomic():
        key_check(key=row)
        row.save(force_insert=True)
        audit_entry_create(
            actor=actor,
            action="key.create",
            object_id=row.prefix,
            detail={"account": account.name} | values_of(row, KEY_FIELDS),
        )
        for cap in caps:
            budget_create(actor=actor, cap=cap, key=row)
        revision_bump()
    return CreatedKey(row=row, key=made.key)


def key_update(*, actor: Actor, key: ApiKey, changed_fields: list[str]) -> None:
    """Writes the named fields of an edited row. Raises ``MeteringValueError``."""
    for name in changed_fields:
        if name not in KEY_FIELDS:
            raise MeteringValueError(name, f"{name} cannot be changed: make another key")
    with transaction.atomic():
        key_check(key=key)
        row_update(
            actor=actor,
            action="key.update",
            object_id=key.prefix,
            row=key,
            changed_fields=changed_fields,
        )


def key_revoke(*, actor: Actor, key: ApiKey) -> bool:
    """Revokes it permanently, on every gateway within a second. ``False``: it was revoked
    before."""
    with transaction.atomic():
        now = timezone.now()
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=now)
        if not revoked:
            return False
        key.revoked_at = now
        audit_entry_create(actor=actor, action="key.revoke", object_id=key.prefix)
        revision_bump()
    return True


def key_check(*, key: ApiKey) -> None:
    """Normalises scopes and models. Raises ``MeteringValueError``."""
    if len(key.name) > MAX_NAME_CHARS or not key.name.isprintable():
        raise MeteringValueError("name", f"A name has at most {MAX_NAME_CHARS} printable letters")
    key.scopes = _scopes(key.scopes)
    stored = ApiKey.objects.filter(pk=key.pk).first() or ApiKey()
    key.model_names = _model_names(key.model_names, stored.model_names)
    limits_check(row=key)
    capture_check(row=key)
    if key.expires_at is not None and key.expires_at <= timezone.now():
        _ensure_kept(key.expires_at, stored.expires_at)


def _ensure_kept(expires_at: datetime, stored: datetime | None) -> None:
    """An expired key may still be renamed. Forms have whole seconds. Raises
    ``MeteringValueError``."""
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
    """The scopes in ``Scope``'s order. Raises ``MeteringValueError`` for an unknown scope, or for
    none."""
    given = set(words)
    known = [scope.value for scope in Scope]
    if unknown := sorted(given - set(known)):
        raise MeteringValueError("scopes", f"{unknown[0]!r} is none of {', '.join(known)}")
    if not given:
        raise MeteringValueError("scopes", "A key without a scope is good for nothing")
    return [word for word in known if word in given]


def _model_names(words: Iterable[str], stored: Collection[str]) -> list[str]:
    names = set(words)
    known = {*stored, *_among(Alias, names), *_among(CatalogueModel, names)}
    if unknown := sorted(names - known):
        raise MeteringValueError("model_names", f"There is no model named {unknown[0]!r}")
    return sorted(names)


def _among(rows: type[Alias | CatalogueModel], names: Collection[str]) -> Iterable[str]:
    return rows.objects.filter(name__in=names).values_list("name", flat=True)
