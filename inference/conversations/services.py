"""Stored responses, each account's own. A conditional update ends a response, once. A chain is read
back to its beginning in one query."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from inference.conversations.models import (
    ACTIVE,
    CONTINUABLE,
    MAX_CHAIN,
    ConversationError,
    PreviousResponseMissingError,
    ResponseRecord,
    StoredResponse,
    is_response_id,
)
from inference.quotas import Quota, Used, quota_locked, used_of
from metering.audit import Actor, audit_entry_create

LEASE_S = 30.0
"""Many times the period in which gateways renew it."""
FORGET_BATCH = 500
MAX_FORGOTTEN_BATCHES = 200
"""The control has other work."""
ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_i?[0-9]+")
"""Ids that helexa gave to items contain their response's id."""

CHAIN = """
WITH RECURSIVE chain(id, previous_id, place) AS (
    SELECT id, previous_id, 0 FROM conversations_storedresponse WHERE id = %s AND account = %s
    UNION ALL
    SELECT earlier.id, earlier.previous_id, chain.place + 1
    FROM conversations_storedresponse AS earlier JOIN chain ON earlier.id = chain.previous_id
    WHERE earlier.account = %s AND chain.place < %s
)
SELECT stored.* FROM conversations_storedresponse AS stored JOIN chain ON stored.id = chain.id
ORDER BY chain.place
"""

GATEWAY_LOST = "The gateway that worked on this response went away."


def response_find(
    response_id: str, *, account: str, alive_gateway: str | None = None
) -> ResponseRecord | None:
    """Responses of ``alive_gateway`` are not lost when their lease expires (database offline)."""
    if not is_response_id(response_id):
        return None
    row = StoredResponse.objects.filter(pk=response_id, account=account).first()
    return None if row is None else _record(row, timezone.now(), alive_gateway)


def history_items(response_id: str, *, account: str) -> list[dict[str, Any]]:
    """From the beginning of the conversation up to this response. Raises ``ConversationError``."""
    chain = _chain(response_id, account)
    if not chain:
        raise PreviousResponseMissingError(response_id)
    if len(chain) > MAX_CHAIN:
        raise ConversationError(
            f"This conversation is {MAX_CHAIN:,} responses long, which is as many as are kept "
            "together; compact it, or send it whole."
        )
    if missing_id := chain[-1].previous_id:
        raise PreviousResponseMissingError(missing_id)
    now = timezone.now()
    records = [_record(row, now) for row in chain]
    if records[0].status not in CONTINUABLE:
        raise ConversationError(
            f"Previous response with id '{response_id}' is {records[0].status}: only completed and "
            "incomplete ones can be built on."
        )
    return [
        item for record in reversed(records) for item in (*record.input_items, *record.output_items)
    ]


def _chain(response_id: str, account: str) -> list[StoredResponse]:
    """Newest first, one more than is allowed. All are of one account: a request can only continue a
    response that it can read."""
    if not is_response_id(response_id):
        return []
    return list(StoredResponse.objects.raw(CHAIN, [response_id, account, account, MAX_CHAIN]))


def items_find(item_ids: Iterable[str], *, account: str) -> dict[str, dict[str, Any]]:
    wanted = {item_id: ITEM_ID.fullmatch(item_id) for item_id in item_ids}
    owners = {f"resp_{match[1]}" for match in wanted.values() if match is not None}
    found: dict[str, dict[str, Any]] = {}
    now = timezone.now()
    for row in StoredResponse.objects.filter(pk__in=owners, account=account):
        record = _record(row, now)
        found |= {item["id"]: item for item in (*record.input_items, *record.output_items)}
    return {item_id: found[item_id] for item_id in wanted if item_id in found}


def account_usage(account: str, using: str = "default") -> Used:
    return used_of(StoredResponse.objects.using(using).filter(account=account))


def _lost_response(response_json: str) -> dict[str, Any]:
    error = {"code": "server_error", "message": GATEWAY_LOST}
    response: dict[str, Any] = orjson.loads(response_json)
    return response | {"status": "failed", "error": error}


def _record(row: StoredResponse, now: datetime, alive_gateway: str | None = None) -> ResponseRecord:
    has_lapsed = row.status in ACTIVE and row.lease_until is not None and row.lease_until < now
    is_lost = has_lapsed and (alive_gateway is None or row.gateway_id != alive_gateway)
    response = _lost_response(row.response_json) if is_lost else orjson.loads(row.response_json)
    return ResponseRecord(
        account=row.account,
        response=response,
        input_items=orjson.loads(row.input_items_json),
        previous_id=row.previous_id or None,
        background=row.background,
        last_event_number=row.last_event_number,
        presumed_lost_by=row.gateway_id if is_lost else None,
    )


def response_save(
    *, record: ResponseRecord, quota: Quota, gateway_id: str = "", using: str = "default"
) -> int:
    """Returns its size in bytes. Raises ``QuotaFullError``."""
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
    """``False``: it had ended already, or was deleted, and nothing was written."""
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
    """``False``: it has ended or its lease was renewed meanwhile."""
    lapsed = StoredResponse.objects.filter(
        pk=response_id, status__in=ACTIVE, lease_until__lt=timezone.now()
    )
    row = lapsed.first()
    if row is None:
        return False
    response_json = _json(_lost_response(row.response_json))
    num_more_bytes = len(response_json.encode()) - len(row.response_json.encode())
    ended = lapsed.filter(response_json=row.response_json).update(
        status="failed",
        response_json=response_json,
        size_bytes=row.size_bytes + num_more_bytes,
        lease_until=None,
    )
    return ended == 1


def response_cancel(*, response_id: str, account: str, alive_gateway: str | None = None) -> bool:
    """``False``: it had ended, its gateway is gone, or it is not this account's."""
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
    """Returns those still active."""
    active = StoredResponse.objects.filter(pk__in=response_ids, status__in=ACTIVE)
    active.update(lease_until=_lease_end())
    return set(active.values_list("pk", flat=True))


def responses_forget(*, actor: Actor, older_than: timedelta) -> int:
    """Deletes in batches, so that no transaction is long; the next call continues."""
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
