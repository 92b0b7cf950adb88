"""Anthropic's model list, with helexa's own fields, in that API's pages.

An alias is an entry of its own: clients of this API offer only models whose ids begin with a
familiar name. Source: https://docs.anthropic.com/en/api/models-list. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from inference.wire.dialect import page_limit, page_of
from inference.wire.errors import InvalidRequestError
from inference.wire.model_card import ModelCard, own_fields

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000
EFFORTS = ("low", "medium", "high", "xhigh", "max")
THINKING_TYPES = ("adaptive", "enabled", "disabled")
CONTEXT_EDITS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")

_YES, _NO = {"supported": True}, {"supported": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    limit: int = DEFAULT_LIMIT
    after_id: str | None = None
    before_id: str | None = None


def parse_page(query: Mapping[str, str]) -> PageRequest:
    after_id, before_id = query.get("after_id"), query.get("before_id")
    if after_id is not None and before_id is not None:
        raise InvalidRequestError("Give 'after_id' or 'before_id', not both.", param="after_id")
    limit = page_limit(query, DEFAULT_LIMIT, MAX_LIMIT)
    return PageRequest(limit=limit, after_id=after_id, before_id=before_id)


def model_body(card: ModelCard) -> bytes:
    return orjson.dumps(model_object(card, card.id))


def model_list_body(cards: Sequence[ModelCard], page: PageRequest) -> bytes:
    """Raises ``InvalidRequestError`` for a page beside an id that is not in the list."""
    entries = [(name, card) for card in cards for name in (card.id, *card.aliases)]
    start, end, has_more = _page([name for name, _ in entries], page)
    data = [model_object(card, name) for name, card in entries[start:end]]
    return orjson.dumps({**page_of(data, page.limit), "has_more": has_more})


def model_object(card: ModelCard, name: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name if name == card.id else f"{name} ({card.id})",
        "created_at": _timestamp(card.created_unix_s),
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": None if card.limit is None else card.limit.input,
        "max_tokens": None if card.limit is None else card.limit.output,
        "capabilities": None if card.capabilities is None else _capabilities(card),
        **own_fields(card, name),
    }


def _page(names: list[str], page: PageRequest) -> tuple[int, int, bool]:
    """The slice's ends, and whether more follows in the page's direction."""
    if page.before_id is not None:
        end = _position(names, page.before_id, "before_id")
        start = max(0, end - page.limit)
        return start, end, start > 0
    start = 0 if page.after_id is None else _position(names, page.after_id, "after_id") + 1
    end = min(len(names), start + page.limit)
    return start, end, end < len(names)


def _position(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise InvalidRequestError(f"'{param}' is no model of this list.", param=param)
    return names.index(name)


def _capabilities(card: ModelCard) -> dict[str, Any]:
    thinks = {"supported": bool(card.can("reasoning"))}
    return {
        "batch": _NO,
        "citations": _NO,
        "code_execution": _NO,
        "context_management": {**_NO, **dict.fromkeys(CONTEXT_EDITS, _NO)},
        "effort": {**thinks, **dict.fromkeys(EFFORTS, thinks)},
        "image_input": {"supported": bool(card.can("vision"))},
        "pdf_input": _NO,
        "server_tools": {**_NO, "code_execution": _NO, "web_search": _NO},
        "structured_outputs": {"supported": bool(card.can("structured_output"))},
        "thinking": {
            **thinks,
            "types": {
                **dict.fromkeys(THINKING_TYPES, _YES),
                "between_tools": _NO,
            },
        },
    }


def _timestamp(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
