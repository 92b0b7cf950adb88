"""Probes of chats and of counting tokens: one small request each; any well-formed answer will do.

``CHATS`` has the dialects' forms of requests and answers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.entry import Dialect, UpstreamEntry
from fleet.upstreams.http import Answer, exchange, unversioned

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 15.0
MAX_BYTES = 1024 * 1024
MAX_TOKENS = 64
RED_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJ0lEQVR42u3NsQkAAA"
    "jAsP7/tF7hIASyp6lTCQQCgUAgEAgEgi/BAjLD/C5w/SM9AAAAAElFTkSuQmCC"
)
NUMBERS = (3, 7, 11)
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "enum": list(NUMBERS)}},
    "required": ["number"],
    "additionalProperties": False,
}
"""Small models write numbers without end where any is allowed."""
FUNCTION = {"name": "report_number", "description": "Reports a number."}
OPENAI_TOOL = {"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}
HELLO, COLOUR = "Say hello.", "Which colour is this?"


class Asking:
    def __init__(
        self, client: httpx2.Client, entry: UpstreamEntry, model: str, until_s: float
    ) -> None:
        self._client = client
        self._until_s = until_s
        self.dialect = entry.dialect
        self.url = entry.url
        self.model = model

    @property
    def left_s(self) -> float:
        return self._until_s - time.monotonic()

    def post(
        self,
        url: str,
        body: dict[str, Any],
        *,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """Raises ``UpstreamUnavailableError``, also for a status that is no success."""
        return self._asked(url, timeout_s, max_bytes, json=body)

    def upload(self, url: str, fields: dict[str, str], file: tuple[str, bytes, str]) -> Answer:
        """Sends a form with ``file``, its name, content and type. Raises as ``post``."""
        return self._asked(url, TIMEOUT_S, MAX_BYTES, data=fields, files={"file": file})

    def _asked(self, url: str, timeout_s: float, max_bytes: int, **sent: Any) -> Answer:
        timeout_s = min(timeout_s, max(0.1, self.left_s))
        answer = exchange(
            self._client, "POST", url, timeout_s=timeout_s, max_bytes=max_bytes, **sent
        )
        if not answer.is_success:
            raise UpstreamUnavailableError(f"it answers with status {answer.status}")
        return answer


Step = Callable[[Asking], str]
"""Returns a detail. Raises ``UpstreamUnavailableError`` where it does not work."""


def no_answer() -> UpstreamUnavailableError:
    return UpstreamUnavailableError("its answer is not understood")


def _openai_message(body: Any) -> Any:
    return body["choices"][0]["message"]


def _openai_image() -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{RED_PNG}"}}
    return {"content": [{"type": "text", "text": COLOUR}, image]}


def _anthropic_image() -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": RED_PNG}
    return {"content": [{"type": "image", "source": source}, {"type": "text", "text": COLOUR}]}


def _anthropic_blocks(body: Any) -> Any:
    blocks = body["content"]
    return {
        "tool_calls": [block for block in blocks if block.get("type") == "tool_use"],
        "content": "".join(block["text"] for block in blocks if block.get("type") == "text"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A dialect's chat. ``stream``, ``tools`` and ``schema`` are fields of a request; ``message``
    finds the answer's message, with ``content`` and ``tool_calls``."""

    path: str
    always: Mapping[str, Any] = field(default_factory=lambda: {"max_tokens": MAX_TOKENS})
    stream: Mapping[str, Any]
    stream_marks: tuple[bytes, bytes]
    """Bytes that occur in a stream, and in one with usage."""
    stream_type: str = ""
    tools: Mapping[str, Any]
    must_call: bool = True
    """Whether the dialect has a way to require a call."""
    schema: Mapping[str, Any]
    image: Callable[[], dict[str, Any]]
    message: Callable[[Any], Any]


CHATS: Mapping[Dialect, Chat] = {
    "openai": Chat(
        path="/chat/completions",
        stream={"stream": True, "stream_options": {"include_usage": True}},
        stream_marks=(b"chat.completion.chunk", b'"prompt_tokens"'),
        tools={"tools": [OPENAI_TOOL], "tool_choice": "required"},
        schema={
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
            }
        },
        image=_openai_image,
        message=_openai_message,
    ),
    "anthropic": Chat(
        path="/v1/messages",
        stream={"stream": True},
        stream_marks=(b'"message_start"', b'"output_tokens"'),
        tools={"tools": [{**FUNCTION, "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
        schema={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        image=_anthropic_image,
        message=_anthropic_blocks,
    ),
    "ollama": Chat(
        path="/api/chat",
        always={"stream": False, "options": {"num_predict": MAX_TOKENS}},
        stream={"stream": True},
        stream_marks=(b'"message"', b'"eval_count"'),
        stream_type="x-ndjson",
        tools={"tools": [OPENAI_TOOL]},
        must_call=False,
        schema={"format": SCHEMA, "think": False},
        image=lambda: {"content": COLOUR, "images": [RED_PNG]},
        message=lambda body: body["message"],
    ),
}


def _send(asking: Asking, message: Mapping[str, Any], fields: Mapping[str, Any]) -> Answer:
    chat = CHATS[asking.dialect]
    messages = [{"role": "user", **message}]
    body = {"model": asking.model, "messages": messages, **chat.always, **fields}
    return asking.post(f"{asking.url}{chat.path}", body)


def _message(
    asking: Asking, message: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        found = CHATS[asking.dialect].message(_send(asking, message, fields).json())
    except (LookupError, TypeError, AttributeError):
        found = None
    if not isinstance(found, dict):
        raise no_answer()
    return found


def _stream(asking: Asking) -> str:
    chat = CHATS[asking.dialect]
    answer = _send(asking, {"content": HELLO}, chat.stream)
    mark, usage_mark = chat.stream_marks
    if chat.stream_type not in answer.content_type or mark not in answer.body:
        raise UpstreamUnavailableError("it does not stream")
    has_usage = usage_mark in answer.body
    return "with usage" if has_usage else "without usage: tokens will be estimated"


def _tools(asking: Asking) -> str:
    chat = CHATS[asking.dialect]
    if not _message(asking, {"content": "Report the number 7."}, chat.tools).get("tool_calls"):
        when = "one is required" if chat.must_call else "it was asked to"
        raise UpstreamUnavailableError(f"it calls no tool where {when}")
    return ""


def _schema(asking: Asking) -> str:
    schema = CHATS[asking.dialect].schema
    message = _message(asking, {"content": "Report the number 7 as JSON."}, schema)
    try:
        number = json.loads(message.get("content") or "")
    except (ValueError, TypeError):
        number = None
    if number not in [{"number": number} for number in NUMBERS]:
        raise UpstreamUnavailableError("its answer does not keep to the schema")
    return ""


def _images(asking: Asking) -> str:
    _message(asking, CHATS[asking.dialect].image(), {})
    return ""


def _counting(asking: Asking) -> str:
    """vLLM, SGLang and helexa count a chat, llama-server text."""
    chat = {"model": asking.model, "messages": [{"role": "user", "content": HELLO}]}
    match asking.dialect:
        case "ollama":
            raise UpstreamUnavailableError("the dialect has no counting of tokens")
        case "anthropic":
            _count(asking, f"{asking.url}/v1/messages/count_tokens", chat, ("input_tokens",))
            return ""
    url, counted = f"{unversioned(asking.url)}/tokenize", ("count", "tokens")
    try:
        _count(asking, url, chat, counted)
    except UpstreamUnavailableError:
        _count(asking, url, {"content": HELLO}, counted)
        return "of text; a chat's tokens, which clients ask for, it does not count"
    return ""


def _count(asking: Asking, url: str, body: dict[str, Any], counted: tuple[str, ...]) -> None:
    """``counted``: fields of which the answer has one. Raises ``UpstreamUnavailableError``."""
    found = asking.post(url, body).json()
    if not isinstance(found, dict) or not any(found.get(name) for name in counted):
        raise no_answer()


STEPS: Mapping[str, Step] = {
    "stream": _stream,
    "tools": _tools,
    "schema": _schema,
    "images": _images,
    "counting": _counting,
}
