"""A conversation's history: stored responses read back and replayed, and compaction.

A replay has its items whole, since deltas are not stored. Its closing event keeps its number from
the first stream: a client that resumes drops every event up to the last one it has seen.

Compaction makes a request for a summary. The user's and the developer's messages stay; one
``compaction`` item replaces the model's messages, calls and results:

    ended by itself, with words ─▶ the model's summary
    cut off ─▶ up to its last whole sentence, a note, the last turns
    empty ───▶                                 a note, the last turns

Sources: https://platform.openai.com/docs/api-reference/responses/get and the pages after it,
https://developers.openai.com/api/reference/resources/responses/methods/compact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec
import orjson

from inference.protocol.events import Failure, FinishReason, Usage
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest, SamplingOptions
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, RequestContext, page_of
from inference.wire.error_envelopes import named_frame, openai_responses_errors
from inference.wire.errors import InvalidRequestError, MissingParameterError, RequestFailedError
from inference.wire.parts import Called, Returned
from inference.wire.responses.fields import INCLUDABLE, carried
from inference.wire.responses.input import InputItem, Message, Summarised, TurnPart, with_ids
from inference.wire.responses.output import NamedEvent, response_id, usage_object
from inference.wire.responses.request import FIELDS, ResponsesRequest, request_of

DEFAULT_ITEMS = 20
MAX_ITEMS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    limit: int = DEFAULT_ITEMS
    order: str = "desc"
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """``starting_after``: the last event that the client has seen."""

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
    read: dict[str, Any] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        plain = "include" if name == "include[]" else name
        read |= f.read_fields({plain: value}, fields)
    return {name: read[name] for name in read if fields[name].support is f.Support.HONOURED}


def item_list_body(items: Sequence[dict[str, Any]], page: ItemPage) -> bytes:
    """``items`` come oldest first. Raises ``InvalidRequestError`` for an unknown ``after``."""
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    if page.after is not None:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            raise InvalidRequestError(
                f"There is no input item with the id '{f.shown(page.after)}'.", param="after"
            )
        ordered = ordered[ids.index(page.after) + 1 :]
    return orjson.dumps({"object": "list", **page_of(ordered, page.limit)})


def deleted_body(id_: str) -> bytes:
    return orjson.dumps({"id": id_, "object": "response", "deleted": True})


UNSAID = ("completed_at", "error", "incomplete_details", "usage")

UNKNOWN_LAST_NUMBER = 2**31 - 1
"""Stands for a number that is not stored: above any that a client has seen."""


def replay(
    response: dict[str, Any], starting_after: int | None, *, last_number: int | None
) -> bytes:
    """``last_number``: of its first stream's closing event, if known."""
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


MAX_LAST_CHARS = 4000
MAX_ONE_CHARS = 1000
SENTENCE_ENDS = (". ", ".\n", "! ", "? ", "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    text: str
    status: Literal["complete", "cut_off", "missing"] = "complete"
    message: str | None = None


def settled(
    written: str, reason: FinishReason, usage: Usage, conversation: Sequence[InputItem]
) -> Summary:
    written = written.strip()
    if written and reason == "stop":
        return Summary(text=written)
    last = _last_turns(conversation)
    if not written:
        message = "The model wrote no summary: the last turns of the conversation stand for it."
        return Summary(text=f"[{message}]\n\n{last}", status="missing", message=message)
    message = (
        f"The model's summary was cut off after {usage.completion_tokens} tokens: the last turns "
        "of the conversation follow it."
    )
    whole = _whole_sentences(written)
    return Summary(text=f"{whole}\n\n[{message}]\n\n{last}", status="cut_off", message=message)


def _whole_sentences(text: str) -> str:
    end = max(text.rfind(mark) for mark in SENTENCE_ENDS)
    return text[: end + 1].strip() if end > 0 else text


def _last_turns(conversation: Sequence[InputItem]) -> str:
    """An earlier summary is kept whole, since its turns are gone."""
    kept: list[str] = []
    room = MAX_LAST_CHARS
    for item in reversed(conversation):
        words = _words(item.part)
        if isinstance(item.part, Summarised):
            kept.append(words)
        elif words and len(words) <= room:
            kept.append(words)
            room -= len(words)
    return "\n".join(reversed(kept))


def _words(part: TurnPart) -> str:
    match part:
        case Message(role="assistant", text=text):
            return f"You said: {f.shown(text, MAX_ONE_CHARS)}"
        case Called(call=call):
            return f"You called {call.name}: {f.shown(call.arguments, MAX_ONE_CHARS)}"
        case Returned():
            return f"It returned: {f.shown(part.message.content or '', MAX_ONE_CHARS)}"
        case Summarised(text=text):
            return text
    return ""


SUMMARISE = (
    "Summarise this conversation, so that you can go on from the summary without the conversation "
    "itself. Say what was asked for and decided, what was done and found, with every name, path, "
    "number and exact value that may be needed again, and what is left to do. Answer with the "
    "summary alone, in at most 400 words."
)
MAX_SUMMARY_TOKENS = 1024
"""Twice the requested length: a small model that continues beyond that only repeats itself."""
MIN_SUMMARY_TOKENS = 256
BYTES_PER_TOKEN = 4
"""A usual rate. A summary must be shorter than its conversation."""
TEMPERATURE, TOP_P = 0.2, 0.9

COMPACTED = (
    *("model", "input", "instructions", "previous_response_id", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "service_tier", "image"),
)
COMPACT_FIELDS = f.table(
    *(replace(FIELDS[name], is_required=name == "model") for name in COMPACTED)
)


def parse_compact(body: bytes, _context: RequestContext = NO_CONTEXT) -> ResponsesRequest:
    read = f.read_body(body, COMPACT_FIELDS)
    if "input" not in read and "previous_response_id" not in read:
        raise MissingParameterError("input")
    return request_of({"input": [], **read})


def summary_request(request: ResponsesRequest) -> GenerationRequest:
    chat = request.generation.input
    assert isinstance(chat, ChatInput), "Responses requests are chats"
    ask = ChatMessage(role="user", content=SUMMARISE)
    asking = msgspec.structs.replace(chat, messages=[*chat.messages, ask], thinking=False)
    num_bytes = sum(len(message.content or "") for message in chat.messages)
    max_tokens = min(MAX_SUMMARY_TOKENS, max(MIN_SUMMARY_TOKENS, num_bytes // BYTES_PER_TOKEN))
    bounded = SamplingOptions(temperature=TEMPERATURE, top_p=TOP_P, max_tokens=max_tokens)
    return msgspec.structs.replace(
        request.generation, input=asking, sampling=bounded, ends_at_context=True
    )


def compacted_body(
    conversation: Sequence[InputItem],
    summary: Summary,
    usage: Usage,
    *,
    request_id: str,
    created_unix_s: int,
) -> bytes:
    kept = [item for item in conversation if _stays(item)]
    compaction = {
        "id": f"cmp_{request_id}",
        "type": "compaction",
        "encrypted_content": carried(summary.text),
    }
    return orjson.dumps(
        {
            "id": response_id(request_id),
            "object": "response.compaction",
            "created_at": created_unix_s,
            "output": [*(item.object for item in with_ids(kept, request_id)), compaction],
            "usage": usage_object(usage),
            "summary": {"status": summary.status, "message": summary.message},
        }
    )


def _stays(item: InputItem) -> bool:
    return isinstance(item.part, Message) and item.part.role != "assistant"
