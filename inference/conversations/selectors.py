"""Reads of stored responses, each only of one account's. No writes.

A chain of responses is read back to its beginning, in one query: each row has only its own
request's input and the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import orjson
from django.utils import timezone

from inference.conversations.models import StoredResponse
from inference.conversations.records import (
    ACTIVE,
    CONTINUABLE,
    MAX_CHAIN,
    ConversationError,
    PreviousResponseMissingError,
    ResponseRecord,
    is_response_id,
)
from inference.quotas import Used, used_of

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
    """``None`` for an id that is not this account's. A response of ``alive_gateway`` is not lost,
    even where its lease has expired because the database was offline."""
    if not is_response_id(response_id):
        return None
    row = StoredResponse.objects.filter(pk=response_id, account=account).first()
    return None if row is None else _record(row, timezone.now(), alive_gateway)


def history_items(response_id: str, *, account: str) -> list[dict[str, Any]]:
    """Every input and output item from the beginning of its conversation up to this response.
    Raises ``ConversationError``."""
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
    """This response and its predecessors, newest first, up to one more than is allowed. All belong
    to the same account, since a request can only continue a response that it can read."""
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


def lost_response(response_json: str) -> dict[str, Any]:
    error = {"code": "server_error", "message": GATEWAY_LOST}
    response: dict[str, Any] = orjson.loads(response_json)
    return response | {"status": "failed", "error": error}


def _record(row: StoredResponse, now: datetime, alive_gateway: str | None = None) -> ResponseRecord:
    has_lapsed = row.status in ACTIVE and row.lease_until is not None and row.lease_until < now
    is_lost = has_lapsed and (alive_gateway is None or row.gateway_id != alive_gateway)
    response = lost_response(row.response_json) if is_lost else orjson.loads(row.response_json)
    return ResponseRecord(
        account=row.account,
        response=response,
        input_items=orjson.loads(row.input_items_json),
        previous_id=row.previous_id or None,
        background=row.background,
        last_event_number=row.last_event_number,
        presumed_lost_by=row.gateway_id if is_lost else None,
    )
