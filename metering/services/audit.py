"""Traces of each write: one audit entry, and a new revision where gateways must read again. Both
belong into the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import F

from metering.actor import Actor
from metering.models import AuditEntry, Revision

CHANGED_FIELDS = "changed"


def audit_entry_create(
    *, actor: Actor, action: str, object_id: str, detail: dict[str, Any] | None = None
) -> AuditEntry:
    """``action`` as in ``key.create``. Call it in the transaction of the change."""
    assert transaction.get_connection().in_atomic_block, "an audit entry without its change"
    return AuditEntry.objects.create(
        actor=str(actor)[:200], action=action, object_id=object_id[:200], detail=detail or {}
    )


def revision_bump() -> None:
    """Makes gateways read their keys, accounts and budgets again. A concurrent change of these
    waits for this transaction's end."""
    if not Revision.objects.filter(pk=1).update(number=F("number") + 1):
        Revision.objects.create(pk=1, number=1)


def changes_of(
    before: models.Model, after: models.Model, fields: Iterable[str]
) -> dict[str, list[Any]]:
    """The fields that differ: their old and their new value, as JSON values."""
    pairs = {name: [_plain(getattr(row, name)) for row in (before, after)] for name in fields}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def values_of(row: models.Model, fields: Iterable[str]) -> dict[str, Any]:
    plain = {name: _plain(getattr(row, name)) for name in fields}
    return {name: value for name, value in plain.items() if value not in (None, "", [])}


def row_update(
    *, actor: Actor, action: str, object_id: str, row: models.Model, changed_fields: list[str]
) -> None:
    """Writes those of the named fields of an edited row that differ from the stored ones. Call it
    in a transaction."""
    before = type(row)._default_manager.select_for_update().get(pk=row.pk)
    if changes := changes_of(before, row, changed_fields):
        row.save(update_fields=list(changes))
        audit_entry_create(actor=actor, action=action, object_id=object_id, detail=changes)
        revision_bump()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, bool | int | float | list | dict | None) else str(value)
