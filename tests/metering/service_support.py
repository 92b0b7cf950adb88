"""What a service left behind: audit entries, the revision, and nothing where it refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metering.audit import user_actor
from metering.errors import MeteringValueError
from metering.models import AuditEntry, Revision

ALICE = user_actor("alice")


def revision() -> int:
    return Revision.objects.get().number


def entries() -> list[tuple[str, str, str]]:
    return [
        (entry.actor, entry.action, entry.object_id) for entry in AuditEntry.objects.order_by("id")
    ]


def refused(field: str, call: Callable[..., Any], **arguments: Any) -> str:
    """The message. Nothing was written, audited or published."""
    before = (entries(), revision())
    with pytest.raises(MeteringValueError) as caught:
        call(**arguments)
    assert caught.value.field == field
    assert (entries(), revision()) == before
    return str(caught.value)
