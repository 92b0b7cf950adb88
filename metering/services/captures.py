"""Limits how long bodies are captured, and audits who reads them. Gateways write the bodies."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from metering.actor import Actor
from metering.errors import MeteringValueError
from metering.models import Account, ApiKey, CapturedRequest, RequestRecord
from metering.services.audit import audit_entry_create

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
    """The captured bodies, for an actor who may read them; that is audited. ``None``: there are
    none (any more)."""
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
