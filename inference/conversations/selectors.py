"""Reads of stored responses. No writes.

A chain of responses is read back to its beginning, one row after the other: each holds only what
its own request brought and what was answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import orjson
from django.utils import timezone

from inference.conversations.errors import (
    PreviousResponseMissingError,
    PreviousResponseUnfinishedError,
)
from inference.conversations.models import StoredResponse
from inference.conversations.records import ACTIVE, CONTINUABLE, ResponseRecord, is_response_id

ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_i?[0-9]+")
"""Items that got their id here say which response they belong to."""

GATEWAY_LOST = "The gateway that worked on this response went away."


def response_find(response_id: str) -> ResponseRecord | None:
    """``None`` for an id that is nobody's."""
    if not is_response_id(response_id):
        return None
    row = StoredResponse.objects.filter(pk=response_id).first()
    return None if row is None else _record(row, timezone.now())


def history_items(response_id: str) -> list[dict[str, Any]]:
    """Every input and output item from the beginning of its conversation up to this response.
    Raises ``ConversationError``."""
    chain = [response_found(response_id)]
    while chain[-1].previous_id is not None:
        chain.append(response_found(chain[-1].previous_id))
    if chain[0].status not in CONTINUABLE:
        raise PreviousResponseUnfinishedError(response_id, chain[0].status)
    return [
        item for record in reversed(chain) for item in (*record.input_items, *record.output_items)
    ]


def response_found(response_id: str) -> ResponseRecord:
    """Raises ``PreviousResponseMissingError``."""
    record = response_find(response_id)
    if record is None:
        raise PreviousResponseMissingError(response_id)
    return record


def items_find(item_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The stored items of these ids, by id; those that are not there are left out."""
    wanted = {item_id: ITEM_ID.fullmatch(item_id) for item_id in item_ids}
    owners = {f"resp_{match[1]}" for match in wanted.values() if match is not None}
    found: dict[str, dict[str, Any]] = {}
    for owner in owners:
        record = response_find(owner)
        if record is not None:
            found |= {item["id"]: item for item in (*record.input_items, *record.output_items)}
    return {item_id: found[item_id] for item_id in wanted if item_id in found}


def _record(row: StoredResponse, now: datetime) -> ResponseRecord:
    response = orjson.loads(row.response_json)
    if row.status in ACTIVE and row.lease_until is not None and row.lease_until < now:
        response |= {
            "status": "failed",
            "error": {"code": "server_error", "message": GATEWAY_LOST},
        }
    return ResponseRecord(
        response=response,
        input_items=orjson.loads(row.input_items_json),
        previous_id=row.previous_id or None,
        background=row.background,
    )
