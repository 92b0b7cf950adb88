"""Stored responses: the query parameters of reads, the bodies of answers, and replays.

    from the beginning    created ─▶ each item added and done ─▶ completed | incomplete | failed
    after some event      completed | incomplete | failed: it carries everything

Deltas are not stored, so items are sent whole. The closing event keeps its number from the first
stream: a client that resumes drops every event up to the last one it has seen. Pure.

Source: https://platform.openai.com/docs/api-reference/responses/get and the pages after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from inference.protocol.events import Failure
from inference.wire.common.fields import integer, one_of, shown, text, unknown_field
from inference.wire.dialect import page_of
from inference.wire.errors import InvalidRequestError, RequestFailedError, UnsupportedParameterError
from inference.wire.openai.responses.errors import error_event, named_frame
from inference.wire.openai.responses.fields import INCLUDABLE
from inference.wire.openai.responses.output import NamedEvent

DEFAULT_ITEMS = 20
MAX_ITEMS = 100

ReadValue = Callable[[str, str], Any]


BETA: dict[str, ReadValue] = {"beta": one_of("true")}
"""The openai SDK's beta client appends it to every path. It changes nothing."""


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


def read_retrieval(query: bytes) -> Retrieval:
    """Raises ``ApiError``."""
    read = _read(
        query,
        {
            "include": one_of(*INCLUDABLE),
            "stream": _flag,
            "include_obfuscation": _only_false("these events are not padded"),
            "starting_after": _number,
        },
    )
    asked = Retrieval(stream=read.get("stream", False), starting_after=read.get("starting_after"))
    if asked.starting_after is not None and not asked.stream:
        raise InvalidRequestError(
            "'starting_after' is only allowed with 'stream' true.", param="starting_after"
        )
    return asked


def read_item_page(query: bytes) -> ItemPage:
    """Raises ``ApiError``."""
    read = _read(
        query,
        {
            "include": one_of(*INCLUDABLE),
            "limit": _limit,
            "order": one_of("asc", "desc"),
            "after": text(),
        },
    )
    read.pop("include", None)
    return ItemPage(**read)


def item_list_body(items: Sequence[dict[str, Any]], page: ItemPage) -> bytes:
    """One page of a response's input items, which come oldest first. Raises
    ``InvalidRequestError`` where ``after`` is not one of them."""
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    if page.after is not None:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            raise InvalidRequestError(
                f"There is no input item with the id '{shown(page.after)}'.", param="after"
            )
        ordered = ordered[ids.index(page.after) + 1 :]
    return orjson.dumps({"object": "list", **page_of(ordered, page.limit)})


def deleted_body(response_id: str) -> bytes:
    return orjson.dumps({"id": response_id, "object": "response", "deleted": True})


def _read(query: bytes, known: dict[str, ReadValue]) -> dict[str, Any]:
    """Reads a query. Of duplicates the last counts, except for ``include``, which is a list."""
    read = {}
    known = known | BETA
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    for name, value in pairs:
        plain = name.removesuffix("[]") if name.startswith("include[") else name
        if plain not in known:
            raise unknown_field(name, known)
        read[plain] = known[plain](value, plain)
    read.pop("beta", None)
    return read


def _number(value: str, name: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise InvalidRequestError(f"'{name}' must be an integer, 0 or more.", param=name)
    return int(value)


def _flag(value: str, name: str) -> bool:
    word: str = one_of("true", "false")(value.lower(), name)
    return word == "true"


def _limit(value: str, name: str) -> int:
    return integer(1, MAX_ITEMS)(_number(value, name), name)


def _only_false(reason: str) -> ReadValue:
    def read(value: str, name: str) -> None:
        if value.lower() != "false":
            raise UnsupportedParameterError(name, reason)

    return read


UNSAID = ("completed_at", "error", "incomplete_details", "usage")

UNKNOWN_LAST_NUMBER = 2**31 - 1
"""For a closing event whose number is not stored: above any that a client has seen."""


def replay(
    response: dict[str, Any], starting_after: int | None, *, last_number: int | None
) -> bytes:
    """``response`` has ended. ``last_number``: of its first stream's closing event, if known."""
    opening = [] if starting_after is not None else _opening(response)
    frames = [named_frame(kind, fields, number) for number, (kind, fields) in enumerate(opening)]
    kind, fields = _ending(response)
    return b"".join(frames) + named_frame(
        kind, fields, _closing_number(starting_after, last_number)
    )


def _closing_number(starting_after: int | None, last_number: int | None) -> int:
    if starting_after is None:
        return UNKNOWN_LAST_NUMBER if last_number is None else last_number
    return max(starting_after + 1, last_number or 0)


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
        return error_event(RequestFailedError(cancelled))
    return f"response.{response['status']}", {"response": response}
