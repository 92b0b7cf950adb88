"""POST /chat/completions.

Thoughts come as ``reasoning_content`` (or ``reasoning``), or between markers in the content, as
helexa does for the header ``x-include-thinking``: ``helexa_acp.text_tools`` finds those.
"""

from __future__ import annotations

import json
import re
from typing import Any

from helexa_acp.history import (
    AssistantTurn,
    Image,
    Part,
    Text,
    ToolResult,
    Turn,
    Usage,
    UserTurn,
    text_of,
)
from helexa_acp.wire import (
    Finished,
    ImageMade,
    JsonObject,
    ModelRequest,
    OpenCall,
    Reason,
    TextDelta,
    ThoughtDelta,
    WireEvent,
    bearer,
    images_after_results,
    wire_name,
)

PATH = "/chat/completions"
DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,([A-Za-z0-9+/=\s]+)")
headers = bearer


def data_url(image: Image) -> str:
    return f"data:{image.mime_type};base64,{image.data}"


def image_from_data_url(url: str) -> Image | None:
    found = DATA_URL.fullmatch(url)
    return Image(found[1], found[2]) if found else None


def request_body(request: ModelRequest) -> dict[str, Any]:
    """``max_tokens``, not its newer name: more servers support it."""
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [{"role": "system", "content": request.system}, *messages(request.turns)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in request.tools
        ]
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    return body


def messages(turns: tuple[Turn, ...]) -> list[dict[str, Any]]:
    return [_message(turn) for turn in images_after_results(turns)]


def _message(turn: Turn) -> dict[str, Any]:
    match turn:
        case UserTurn(parts):
            return {"role": "user", "content": _content(parts)}
        case ToolResult():
            content = text_of(turn.parts)
            return {"role": "tool", "tool_call_id": turn.call_id, "content": content}
        case AssistantTurn():
            return _assistant_message(turn)


def _assistant_message(turn: AssistantTurn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {
                    "name": wire_name(call.name),
                    "arguments": json.dumps(call.arguments),
                },
            }
            for call in turn.calls
        ]
    return message


def _content(parts: tuple[Part, ...]) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, Image) for part in parts):
        return text_of(parts)
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]


class Answer:
    """Folds chunks into events. Calls become events when the answer is complete."""

    def __init__(self) -> None:
        self._calls: list[OpenCall] = []
        self._by_index: dict[int, OpenCall] = {}
        """The latest call of each index."""
        self._reason: Reason = "stop"
        self._is_ended = False
        self._usage = Usage()

    def feed(self, chunk: JsonObject) -> list[WireEvent]:
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        events: list[WireEvent] = []
        for choice in chunk.choices or ():
            delta = choice.delta
            if delta is not None:
                thought = delta.reasoning_content or delta.reasoning
                if isinstance(thought, str):
                    events.append(ThoughtDelta(thought))
                if delta.content:
                    events.append(TextDelta(delta.content))
                if delta.refusal:
                    self._reason = "refusal"
                    events.append(TextDelta(delta.refusal))
                events += _images(delta.images)
                self._take_calls(delta.tool_calls)
            if choice.finish_reason:
                self._is_ended = True
                if choice.finish_reason == "length":
                    self._reason = "length"
                elif choice.finish_reason == "content_filter":
                    self._reason = "refusal"
        return events

    def finish(self) -> list[WireEvent]:
        """Raises ValueError where the stream was incomplete."""
        if not self._is_ended:
            raise ValueError("it ended without a finish_reason")
        return [*(call.made() for call in self._calls), Finished(self._reason, self._usage)]

    def _take_calls(self, deltas: Any) -> None:
        for delta in deltas or ():
            name, arguments = "", ""
            if delta.function is not None:
                name, arguments = delta.function.name or "", delta.function.arguments or ""
            call = self._latest(delta.index)
            if call is None or _begins_another(call, delta.id or "", name, arguments):
                call = self._begin(delta.index)
            call.call_id = call.call_id or delta.id or ""
            if name != call.name:  # some servers repeat it with every piece
                call.name += name
            call.arguments += arguments

    def _latest(self, index: int | None) -> OpenCall | None:
        """The call that a piece may continue; some servers omit the index."""
        if index is None:
            return self._calls[-1] if self._calls else None
        return self._by_index.get(index)

    def _begin(self, index: int | None) -> OpenCall:
        call = OpenCall()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call


def _begins_another(call: OpenCall, call_id: str, name: str, arguments: str) -> bool:
    """Some servers give every call of an answer the same index, and some every piece of a call an
    id of its own: only a piece with a name begins a call."""
    if not name:
        return False
    if call_id and call.call_id:
        return call_id != call.call_id
    return bool(arguments) and _is_object(call.arguments)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _images(images: Any) -> list[WireEvent]:
    """Extension of some servers: the model's images, as data URLs."""
    if not isinstance(images, list):
        return []
    urls = [one.image_url.url for one in images if isinstance(one, JsonObject) and one.image_url]
    made = [image_from_data_url(url) for url in urls if isinstance(url, str)]
    return [ImageMade(image) for image in made if image is not None]


def _usage(counts: JsonObject) -> Usage:
    prompt = counts.prompt_tokens_details
    completion = counts.completion_tokens_details
    return Usage(
        input_tokens=counts.prompt_tokens or 0,
        output_tokens=counts.completion_tokens or 0,
        cached_tokens=getattr(prompt, "cached_tokens", None) or 0,
        thought_tokens=getattr(completion, "reasoning_tokens", None) or 0,
        last_total_tokens=(counts.prompt_tokens or 0) + (counts.completion_tokens or 0),
    )
