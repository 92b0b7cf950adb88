"""The audit: an entry for each change, with its author, in the transaction of the change."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NewType

from django.db import models, transaction
from django.db.models import F

from metering.models import AuditEntry, Revision

Actor = NewType("Actor", str)
"""As in the column: a kind, and who of it where there are several."""


def _user_and_host() -> str:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # containers run as unnamed user ids
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


COMMAND = Actor(f"command:{_user_and_host()}")
GATEWAY, CONTROL = Actor("gateway"), Actor("control")


def user_actor(username: str) -> Actor:
    return Actor(f"user:{username}")


def key_actor(prefix: str) -> Actor:
    return Actor(f"key:{prefix}")


CHANGED_FIELDS = "changed"


def audit_entry_create(
    *, actor: Actor, action: str, object_id: str, detail: dict[str, Any] | None = None
) -> AuditEntry:
    """``action`` as in ``key.create``. Call it in the transaction of the change."""
    assert transaction.get_connection().in_atomic_block, "an audit entry without its change"
    return AuditEntry.objects.create(
        actor=actor[:200], action=action, object_id=object_id[:200], detail=detail or {}
    )


def write_record(
    *, actor: Actor, action: str, object_id: str, detail: dict[str, Any] | None = None
) -> None:
    """Makes a new revision as well: gateways read accounts, keys and budgets again. A concurrent
    write waits for this transaction's end."""
    audit_entry_create(actor=actor, action=action, object_id=object_id, detail=detail)
    if not Revision.objects.filter(pk=1).update(number=F("number") + 1):
        Revision.objects.create(pk=1, number=1)


def changes_of(
    before: models.Model, after: models.Model, fields: Iterable[str]
) -> dict[str, list[Any]]:
    """Old and new value of each field that differs, as JSON values."""
    pairs = {name: [_plain(getattr(row, name)) for row in (before, after)] for name in fields}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def values_of(row: models.Model, fields: Iterable[str]) -> dict[str, Any]:
    plain = {name: _plain(getattr(row, name)) for name in fields}
    return {name: value for name, value in plain.items() if value not in (None, "", [])}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, bool | int | float | list | dict | None) else str(value)
