"""Writes of stored responses. A conditional update ends a response, once."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from inference.conversations.models import StoredResponse
from inference.conversations.records import ACTIVE, ResponseRecord, is_response_id
from inference.conversations.selectors import account_usage, lost_response
from inference.quotas import Quota, quota_locked
from metering.audit import Actor, audit_entry_create

LEASE_S = 30.0
"""Many times the period in which gateways renew it."""
FORGET_BATCH = 500
MAX_FORGOTTEN_BATCHES = 200
"""Batches of one call: the control has other work."""


def response_save(
    *, record: ResponseRecord, quota: Quota, gateway_id: str = "", using: str = "default"
) -> int:
    """Saves a new response; an active one is leased to the caller's gateway. Returns its size in
    bytes. Raises ``QuotaFullError`` where the account has as many as it may."""
    response_json, input_items_json = _json(record.response), _json(record.input_items)
    size_bytes = len(response_json.encode()) + len(input_items_json.encode())
    with quota_locked("responses", record.account, using):
        quota.check(account_usage(record.account, using))
        StoredResponse.objects.using(using).create(
            id=record.id,
            account=record.account,
            size_bytes=size_bytes,
            model=record.response["model"],
            status=record.status,
            background=record.background,
            previous_id=record.previous_id or "",
            response_json=response_json,
            input_items_json=input_items_json,
            created_at=datetime.fromtimestamp(record.response["created_at"], UTC),
            lease_until=_lease_end() if record.status in ACTIVE else None,
            gateway_id=gateway_id,
            last_event_number=record.last_event_number,
        )
    return size_bytes


def response_progress(*, response: dict[str, Any], last_event_number: int | None = None) -> bool:
    """Records an active response's progress, or its end and the number of its stream's closing
    event; its size counts for its account. ``False``: it had ended already, or was deleted, and
    nothing was written."""
    is_active = response["status"] in ACTIVE
    active = StoredResponse.objects.filter(pk=response["id"], status__in=ACTIVE)
    before = active.values_list("size_bytes", "response_json").first()
    if before is None:
        return False
    size_bytes, json_before = before
    response_json = _json(response)
    changed = active.update(
        status=response["status"],
        response_json=response_json,
        size_bytes=size_bytes - len(json_before.encode()) + len(response_json.encode()),
        lease_until=_lease_end() if is_active else None,
        last_event_number=last_event_number,
    )
    return changed == 1


def response_lost(*, response_id: str) -> bool:
    """Ends a response whose gateway is gone, permanently: if that gateway only hung, it stops its
    run. ``False``: it has ended or its lease was renewed meanwhile."""
    lapsed = StoredResponse.objects.filter(
        pk=response_id, status__in=ACTIVE, lease_until__lt=timezone.now()
    )
    row = lapsed.first()
    if row is None:
        return False
    response_json = _json(lost_response(row.response_json))
    num_more_bytes = len(response_json.encode()) - len(row.response_json.encode())
    ended = lapsed.filter(response_json=row.response_json).update(
        status="failed",
        response_json=response_json,
        size_bytes=row.size_bytes + num_more_bytes,
        lease_until=None,
    )
    return ended == 1


def response_cancel(*, response_id: str, account: str, alive_gateway: str | None = None) -> bool:
    """``False``: it had ended already, its gateway is gone, or it is not this account's.
    ``alive_gateway``: see ``response_find``."""
    if not is_response_id(response_id):
        return False
    worked_on = Q(lease_until__gte=timezone.now())
    if alive_gateway is not None:
        worked_on |= Q(gateway_id=alive_gateway)
    row = StoredResponse.objects.filter(
        worked_on, pk=response_id, account=account, status__in=ACTIVE
    ).first()
    if row is None:
        return False
    return response_progress(response={**orjson.loads(row.response_json), "status": "cancelled"})


def response_delete(*, response_id: str, account: str) -> bool:
    if not is_response_id(response_id):
        return False
    deleted, _ = StoredResponse.objects.filter(pk=response_id, account=account).delete()
    return deleted > 0


def leases_renew(*, response_ids: Collection[str]) -> set[str]:
    """Returns those still active; the others were cancelled or deleted elsewhere."""
    active = StoredResponse.objects.filter(pk__in=response_ids, status__in=ACTIVE)
    active.update(lease_until=_lease_end())
    return set(active.values_list("pk", flat=True))


def responses_forget(*, actor: Actor, older_than: timedelta) -> int:
    """Deletes the responses older than this, except unfinished ones: the oldest ``FORGET_BATCH``
    times ``MAX_FORGOTTEN_BATCHES`` of them; the next call continues. Returns how many. Deletes in
    batches, so that no transaction holds the database for long."""
    old = StoredResponse.objects.filter(created_at__lt=timezone.now() - older_than).exclude(
        status__in=ACTIVE, lease_until__gte=timezone.now()
    )
    num_deleted = 0
    for _ in range(MAX_FORGOTTEN_BATCHES):
        batch = list(old.order_by("created_at").values_list("pk", flat=True)[:FORGET_BATCH])
        if not batch:
            break
        with transaction.atomic():
            StoredResponse.objects.filter(pk__in=batch).delete()
            audit_entry_create(
                actor=actor,
                action="responses.forget",
                object_id="responses",
                detail={"deleted": len(batch), "older_than_days": older_than.days},
            )
        num_deleted += len(batch)
    return num_deleted


def _lease_end() -> datetime:
    return timezone.now() + timedelta(seconds=LEASE_S)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
