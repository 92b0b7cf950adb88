"""Compacts a conversation: makes a request for a summary, and from the summary the items that
replace the conversation.

    parse(body) ─▶ ResponsesRequest ─▶ continued ─▶ summary_request ─▶ body(items, summary)

The user's and the developer's messages stay. One ``compaction`` item replaces the model's messages,
calls and results:

    ended by itself, with words ─▶ the model's summary
    cut off ─▶ up to its last whole sentence, a note, the last turns
    empty ───▶                                 a note, the last turns

Source: https://developers.openai.com/api/reference/resources/responses/methods/compact. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import orjson

from inference.protocol.events import FinishReason, Usage
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from inference.protocol.sampling import SamplingOptions
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.errors import MissingParameterError
from inference.wire.fields import read_body, table
from inference.wire.openai.responses.fields import carried
from inference.wire.openai.responses.input import InputItem, Message, Summarised, TurnPart, with_ids
from inference.wire.openai.responses.output import response_id, usage_object
from inference.wire.openai.responses.request import FIELDS as RESPONSE_FIELDS
from inference.wire.openai.responses.request import ResponsesRequest, request_of
from inference.wire.parts import Called, Returned

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
    """The newest turns up to ``MAX_LAST_CHARS``, in their order. An earlier summary is kept whole,
    since its turns are gone."""
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
            return f"You said: {_short(text)}"
        case Called(call=call):
            return f"You called {call.name}: {_short(call.arguments)}"
        case Returned():
            return f"It returned: {_short(part.message.content or '')}"
        case Summarised(text=text):
            return text
    return ""


def _short(text: str) -> str:
    return text if len(text) <= MAX_ONE_CHARS else f"{text[:MAX_ONE_CHARS]}…"


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
"""A summary is to be exact, whatever the model's own default is."""

COMPACTED = (
    *("model", "input", "instructions", "previous_response_id", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "service_tier", "image"),
)
FIELDS = table(*(replace(RESPONSE_FIELDS[name], is_required=name == "model") for name in COMPACTED))


def parse(body: bytes, _context: RequestContext = NO_CONTEXT) -> ResponsesRequest:
    read = read_body(body, FIELDS)
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


def body(
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
