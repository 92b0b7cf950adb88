"""Probes of chats and of counting tokens: one small request each; any well-formed answer will do.

``CHATS`` has the dialects' forms of requests and answers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.entry import Dialect, UpstreamEntry
from fleet.upstreams.http import Answer, exchange, unversioned

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 15.0
MAX_BYTES = 1024 * 1024
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
BOUNDED = {"max_tokens": 64}


@dataclass(frozen=True, slots=True)
class Asking:
    client: httpx2.Client
    entry: UpstreamEntry
    model: str
    until_s: float

    @property
    def chat(self) -> Chat:
        return CHATS[self.entry.dialect]

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def post(
        self, url: str, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES, **sent: Any
    ) -> Answer:
        """``sent``: the body as httpx2 names it. Raises ``UpstreamUnavailableError``, also for a
        status that is no success."""
        timeout_s = min(timeout_s, max(0.1, self.left_s))
        answer = exchange(
            self.client, "POST", url, timeout_s=timeout_s, max_bytes=max_bytes, **sent
        )
        if not answer.is_success:
            raise UpstreamUnavailableError(f"it answers with status {answer.status}")
        return answer

    def send(self, content: Any, fields: Mapping[str, Any], **message: Any) -> Answer:
        """A chat of one message with ``content``, and other ``fields`` of the request."""
        messages = [{"role": "user", "content": content, **message}]
        body = {"model": self.model, "messages": messages, **self.chat.always, **fields}
        return self.post(f"{self.entry.url}{self.chat.path}", json=body)

    def message(self, content: Any, fields: Mapping[str, Any], **message: Any) -> dict[str, Any]:
        """The answer's message, with ``content`` and ``tool_calls``."""
        try:
            found = self.chat.message(self.send(content, fields, **message).json())
        except (LookupError, TypeError, AttributeError):
            found = None
        if not isinstance(found, dict):
            raise no_answer()
        return found


Step = Callable[[Asking], str]
"""Returns a detail. Raises ``UpstreamUnavailableError`` where it does not work."""


def no_answer() -> UpstreamUnavailableError:
    return UpstreamUnavailableError("its answer is not understood")


def _anthropic_message(body: Any) -> Any:
    blocks = body["content"]
    return {
        "tool_calls": [block for block in blocks if block.get("type") == "tool_use"],
        "content": "".join(block["text"] for block in blocks if block.get("type") == "text"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A dialect's chat. ``always``, ``stream``, ``tools`` and ``schema`` are fields of a request;
    ``image`` is a message with one; ``message`` finds the answer's."""

    path: str
    always: Mapping[str, Any]
    stream: Mapping[str, Any]
    stream_marks: tuple[bytes, bytes]
    """Bytes that occur in a stream, and in one with usage."""
    stream_type: str = ""
    tools: Mapping[str, Any]
    schema: Mapping[str, Any]
    image: Mapping[str, Any]
    message: Callable[[Any], Any]


CHATS: Mapping[Dialect, Chat] = {
    "openai": Chat(
        path="/chat/completions",
        always=BOUNDED,
        stream={"stream": True, "stream_options": {"include_usage": True}},
        stream_marks=(b"chat.completion.chunk", b'"prompt_tokens"'),
        tools={"tools": [OPENAI_TOOL], "tool_choice": "required"},
        schema={
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
            }
        },
        image={
            "content": [
                {"type": "text", "text": COLOUR},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{RED_PNG}"}},
            ]
        },
        message=lambda body: body["choices"][0]["message"],
    ),
    "anthropic": Chat(
        path="/v1/messages",
        always=BOUNDED,
        stream={"stream": True},
        stream_marks=(b'"message_start"', b'"output_tokens"'),
        tools={"tools": [{**FUNCTION, "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
        schema={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        image={
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": RED_PNG},
                },
                {"type": "text", "text": COLOUR},
            ]
        },
        message=_anthropic_message,
    ),
    "ollama": Chat(
        path="/api/chat",
        always={"stream": False, "options": {"num_predict": BOUNDED["max_tokens"]}},
        stream={"stream": True},
        stream_marks=(b'"message"', b'"eval_count"'),
        stream_type="x-ndjson",
        tools={"tools": [OPENAI_TOOL]},
        schema={"format": SCHEMA, "think": False},
        image={"content": COLOUR, "images": [RED_PNG]},
        message=lambda body: body["message"],
    ),
}


def _stream(asking: Asking) -> str:
    answer = asking.send(HELLO, asking.chat.stream)
    mark, usage_mark = asking.chat.stream_marks
    if asking.chat.stream_type not in answer.content_type or mark not in answer.body:
        raise UpstreamUnavailableError("it does not stream")
    has_usage = usage_mark in answer.body
    return "with usage" if has_usage else "without usage: tokens will be estimated"


def _tools(asking: Asking) -> str:
    if not asking.message("Report the number 7.", asking.chat.tools).get("tool_calls"):
        when = "one is required" if "tool_choice" in asking.chat.tools else "it was asked to"
        raise UpstreamUnavailableError(f"it calls no tool where {when}")
    return ""


def _schema(asking: Asking) -> str:
    message = asking.message("Report the number 7 as JSON.", asking.chat.schema)
    try:
        number = json.loads(message.get("content") or "")
    except (ValueError, TypeError):
        number = None
    if number not in [{"number": number} for number in NUMBERS]:
        raise UpstreamUnavailableError("its answer does not keep to the schema")
    return ""


def _images(asking: Asking) -> str:
    asking.message(fields={}, **asking.chat.image)
    return ""


def _counting(asking: Asking) -> str:
    """vLLM, SGLang and helexa count a chat, llama-server text."""
    url = asking.entry.url
    chat = {"model": asking.model, "messages": [{"role": "user", "content": HELLO}]}
    match asking.entry.dialect:
        case "ollama":
            raise UpstreamUnavailableError("the dialect has no counting of tokens")
        case "anthropic":
            _count(asking, f"{url}/v1/messages/count_tokens", chat)
            return ""
    try:
        _count(asking, f"{unversioned(url)}/tokenize", chat)
    except UpstreamUnavailableError:
        _count(asking, f"{unversioned(url)}/tokenize", {"content": HELLO})
        return "of text; a chat's tokens, which clients ask for, it does not count"
    return ""


def _count(asking: Asking, url: str, body: dict[str, Any]) -> None:
    """Raises ``UpstreamUnavailableError``."""
    found = asking.post(url, json=body).table()
    if not any(found.get(name) for name in ("input_tokens", "count", "tokens")):
        raise no_answer()


STEPS: Mapping[str, Step] = {
    "stream": _stream,
    "tools": _tools,
    "schema": _schema,
    "images": _images,
    "counting": _counting,
}
