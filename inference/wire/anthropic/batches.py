"""Anthropic's message batches: requests in one body, answer objects, lines of results.

Source: https://docs.anthropic.com/en/api/creating-message-batches and the pages after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson

from inference.batches.records import CANCELLING, BatchRecord
from inference.wire import fields as f
from inference.wire.dialect import page_of
from inference.wire.error_envelopes import anthropic_errors
from inference.wire.errors import ApiError, InvalidRequestError, UnsupportedParameterError
from inference.wire.models import PageRequest, parse_page
from inference.wire.openai.batches import ANSWER, MARK, MAX_REQUESTS, Unrun, written_line

ENDPOINT = "/v1/messages"
_COUNTS = {
    "succeeded": "num_completed",
    "errored": "num_failed",
    "expired": "num_expired",
    "canceled": "num_cancelled",
}
decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
REQUEST_FIELDS = f.table(
    f.required(
        "custom_id",
        f.spelled(_CUSTOM_ID, "1 to 64 letters, digits, - or _"),
        "Returned with the result; no two are the same.",
    ),
    f.required("params", f.json_object, "What would be sent to /v1/messages; never streamed."),
)

FIELDS = f.table(
    f.required(
        "requests",
        f.array(REQUEST_FIELDS.read, MAX_REQUESTS, min_items=1),
        "Up to 100,000 requests.",
    )
)


def parse(body: bytes) -> Iterator[bytes]:
    """Yields the requests as lines. Raises ``ApiError``."""
    seen: set[str] = set()
    for index, one in enumerate(_requests(body)):
        if one["custom_id"] in seen:
            raise InvalidRequestError(
                f"{one['custom_id']!r} is there twice.", param=f"requests[{index}].custom_id"
            )
        seen.add(one["custom_id"])
        yield written_line(one["custom_id"], ENDPOINT, one["params"])


def _requests(body: bytes) -> Iterator[dict[str, Any]]:
    """Parses each request by itself: all at once take ten times the body's memory."""
    try:
        fields = decode_fields(body)
        parts = decode_list(fields["requests"]) if fields.keys() == {"requests"} else []
    except (KeyError, ValueError, msgspec.MsgspecError, RecursionError):
        parts = []
    if 0 < len(parts) <= MAX_REQUESTS:
        for index, part in enumerate(parts):
            yield REQUEST_FIELDS.read(f.read_json_value(memoryview(part)), f"requests[{index}]")
    else:
        whole = f.read_json_object(body, bounds_values=False)
        yield from f.read_fields(whole, FIELDS)["requests"]


def parse_batch_page(query: Mapping[str, str]) -> PageRequest:
    """Raises ``InvalidRequestError``."""
    page = parse_page({name: value for name, value in query.items() if name != "beta"})
    if page.before_id is not None:
        raise UnsupportedParameterError("before_id", "pages are read forwards: after_id")
    return page


def batch_object(batch: BatchRecord, *, base_url: str) -> dict[str, Any]:
    has_ended = batch.ended_at is not None
    status = "ended" if has_ended else "in_progress"
    if batch.status == CANCELLING:
        status = "canceling"
    num_ended = batch.num_completed + batch.num_failed + batch.num_expired + batch.num_cancelled
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": 0 if has_ended else batch.num_total - num_ended,
            "succeeded": batch.num_completed,
            "errored": batch.num_failed,
            "canceled": batch.num_cancelled,
            "expired": batch.num_expired,
        },
        "created_at": _rfc3339(batch.created_at),
        "expires_at": _rfc3339(batch.expires_at),
        "ended_at": _rfc3339(batch.ended_at),
        "cancel_initiated_at": _rfc3339(batch.cancelled_at),
        "archived_at": None,
        "results_url": f"{base_url}/v1/messages/batches/{batch.id}/results" if has_ended else None,
    }


def list_body(objects: Sequence[dict[str, Any]], limit: int) -> bytes:
    return orjson.dumps(page_of(objects, limit))


def deleted_body(batch_id: str) -> bytes:
    return orjson.dumps({"id": batch_id, "type": "message_batch_deleted"})


def around_answer(custom_id: str, request_id: str) -> tuple[bytes, bytes]:
    head, _, tail = _line(custom_id, {"type": "succeeded", "message": ANSWER}).partition(MARK)
    return head, tail


def errored(custom_id: str, request_id: str, error: ApiError) -> bytes:
    body = anthropic_errors.error_object(error, request_id=request_id)
    return _line(custom_id, {"type": "errored", "error": body})


def unrun(custom_id: str, request_id: str, why: Unrun) -> bytes:
    return _line(custom_id, {"type": "canceled" if why == "cancelled" else "expired"})


def count_of(result: dict[str, Any]) -> str:
    return _COUNTS[result["result"]["type"]]


def _line(custom_id: str, result: dict[str, Any]) -> bytes:
    line = {"custom_id": custom_id, "result": result}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
