"""Stored responses: the query parameters of reads, the bodies of answers, and replays.

    from the beginning    created ─▶ each item added and done ─▶ completed | incomplete | failed
    after some event      completed | incomplete | failed: it carries everything

Deltas are not stored, so items are sent whole. The closing event keeps its number from the first
stream: a client that resumes drops every event up to the last one it has seen. Pure.

Source: https://platform.openai.com/docs/api-reference/responses/get and the pages after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from inference.protocol.events import Failure
from inference.wire import fields as f
from inference.wire.dialect import page_of
from inference.wire.error_envelopes import named_frame, openai_responses_errors
from inference.wire.errors import InvalidRequestError, RequestFailedError
from inference.wire.openai.responses.fields import INCLUDABLE
from inference.wire.openai.responses.output import NamedEvent

DEFAULT_ITEMS = 20
MAX_ITEMS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    limit: int = DEFAULT_ITEMS
    order: str = "desc"
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """``starting_after``: the number of the last event that the client has seen."""

    stream: bool = False
    starting_after: int | None = None


def _number(value: str, name: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise InvalidRequestError(f"'{name}' must be an integer, 0 or more.", param=name)
    return int(value)


def _limit(value: str, name: str) -> int:
    return f.integer(1, MAX_ITEMS)(_number(value, name), name)


def _flag(value: str, name: str) -> bool:
    return f.one_of("true", "false")(value.lower(), name) == "true"


def _not_padded(value: str, name: str) -> None:
    f.only("false", reason="these events are not padded")(value.lower(), name)


INCLUDE = f.neutral("include", f.one_of(*INCLUDABLE), "Everything stored is returned.")
BETA = f.neutral("beta", f.one_of("true"), "The openai SDK's beta client appends it to each path.")
RETRIEVAL = f.table(
    INCLUDE,
    BETA,
    f.honoured("stream", _flag, "The events of its stream."),
    f.neutral("include_obfuscation", _not_padded, "These events are not padded."),
    f.honoured("starting_after", _number, "The number of the last event that was seen."),
)
ITEM_PAGE = f.table(
    INCLUDE,
    BETA,
    f.honoured("limit", _limit, "1 to 100."),
    f.honoured("order", f.one_of("asc", "desc"), "Whether the oldest comes first."),
    f.honoured("after", f.text(), "An item's id."),
)


def read_retrieval(query: bytes) -> Retrieval:
    """Raises ``ApiError``."""
    asked = Retrieval(**_read(query, RETRIEVAL))
    if asked.starting_after is not None and not asked.stream:
        raise InvalidRequestError(
            "'starting_after' is only allowed with 'stream' true.", param="starting_after"
        )
    return asked


def read_item_page(query: bytes) -> ItemPage:
    """Raises ``ApiError``."""
    return ItemPage(**_read(query, ITEM_PAGE))


def _read(query: bytes, fields: f.Table) -> dict[str, Any]:
    """The honoured parameters. Of duplicates the last counts."""
    read: dict[str, Any] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        plain = "include" if name == "include[]" else name
        read |= f.read_fields({plain: value}, fields)
    return {name: read[name] for name in read if fields[name].support is f.Support.HONOURED}


def item_list_body(items: Sequence[dict[str, Any]], page: ItemPage) -> bytes:
    """One page of a response's input items, which come oldest first. Raises
    ``InvalidRequestError`` where ``after`` is not one of them."""
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    if page.after is not None:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            raise InvalidRequestError(
                f"There is no input item with the id '{f.shown(page.after)}'.", param="after"
            )
        ordered = ordered[ids.index(page.after) + 1 :]
    return orjson.dumps({"object": "list", **page_of(ordered, page.limit)})


def deleted_body(response_id: str) -> bytes:
    return orjson.dumps({"id": response_id, "object": "response", "deleted": True})


UNSAID = ("completed_at", "error", "incomplete_details", "usage")

UNKNOWN_LAST_NUMBER = 2**31 - 1
"""For a closing event whose number is not stored: above any that a client has seen."""


def replay(
    response: dict[str, Any], starting_after: int | None, *, last_number: int | None
) -> bytes:
    """``response`` has ended. ``last_number``: of its first stream's closing event, if known."""
    if starting_after is None:
        opening = _opening(response)
        closing_number = UNKNOWN_LAST_NUMBER if last_number is None else last_number
    else:
        opening, closing_number = [], max(starting_after + 1, last_number or 0)
    frames = [named_frame(kind, fields, number) for number, (kind, fields) in enumerate(opening)]
    return b"".join(frames) + named_frame(*_ending(response), closing_number)


def _opening(response: dict[str, Any]) -> list[NamedEvent]:
    begun = {**response, **dict.fromkeys(UNSAID), "status": "in_progress", "output": []}
    events: list[NamedEvent] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item": item}
        events += [
            ("response.output_item.added", place),
            ("response.output_item.done", place),
        ]
    return events


def _ending(response: dict[str, Any]) -> NamedEvent:
    if response["status"] == "cancelled":
        cancelled = Failure(code="cancelled", message="The response was cancelled.")
        return openai_responses_errors.error_event(RequestFailedError(cancelled))
    return f"response.{response['status']}", {"response": response}
