"""POST /chat/completions.

Thoughts come as ``reasoning_content`` (or ``reasoning``), or between markers in the content, which
is what helexa does for the header ``x-include-thinking``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import openai

from helexa_acp.config import Endpoint
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
from helexa_acp.splitting import Kind, Piece, Splitter
from helexa_acp.wire.base import (
    CallMade,
    Finished,
    ImageMade,
    ModelRequest,
    Reason,
    TextDelta,
    ThoughtDelta,
    WireEvent,
)
from helexa_acp.wire.data_urls import data_url, image_from_data_url
from helexa_acp.wire.names import wire_name
from helexa_acp.wire.openai_errors import open_client, openai_errors, post
from helexa_acp.wire.told import Told
from helexa_acp.wire.tolerant import fed


def open_wire(endpoint: Endpoint) -> ChatWire:
    return ChatWire(open_client(endpoint))


class ChatWire:
    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client

    async def stream(self, request: ModelRequest) -> AsyncGenerator[WireEvent, None]:
        with openai_errors():
            async with await post(
                self._client, "/chat/completions", request_body(request)
            ) as chunks:
                answer = ChatAnswer()
                async for chunk in chunks:
                    for event in fed(answer.feed, chunk):
                        yield event
                for event in answer.finish():
                    yield event

    async def close(self) -> None:
        await self._client.close()


def request_body(request: ModelRequest) -> dict[str, Any]:
    """``max_tokens``, not its newer name: more servers know it."""
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
    """Results hold text alone; their images follow the last of them, in a user's message."""
    written: list[dict[str, Any]] = []
    images: list[Part] = []
    for turn in turns:
        if not isinstance(turn, ToolResult) and images:
            written.append({"role": "user", "content": _content(tuple(images))})
            images = []
        match turn:
            case UserTurn(parts):
                written.append({"role": "user", "content": _content(parts)})
            case ToolResult():
                written.append(
                    {
                        "role": "tool",
                        "tool_call_id": turn.call_id,
                        "content": text_of(turn.parts),
                    }
                )
                images += [part for part in turn.parts if isinstance(part, Image)]
            case AssistantTurn():
                written.append(_assistant_message(turn))
    if images:
        written.append({"role": "user", "content": _content(tuple(images))})
    return written


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


@dataclass(slots=True)
class _OpenCall:
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class ChatAnswer:
    """Folds chunks into events. Calls are told when the answer is whole."""

    def __init__(self) -> None:
        self._splitter = Splitter(finds_calls=False)
        self._calls: dict[int, _OpenCall] = {}
        self._reason: Reason = "stop"
        self._is_ended = False
        self._usage = Usage()

    def feed(self, chunk: Told) -> list[WireEvent]:
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
                    events += map(_event, self._splitter.feed(delta.content))
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
        """Raises ValueError where the stream just stopped."""
        if not self._is_ended:
            raise ValueError("it ended without a finish_reason")
        events: list[WireEvent] = [_event(piece) for piece in self._splitter.flush()]
        for index in sorted(self._calls):
            call = self._calls[index]
            events.append(CallMade(call.call_id, call.name, call.arguments))
        return [*events, Finished(self._reason, self._usage)]

    def _take_calls(self, deltas: Any) -> None:
        """Pieces belong together by their index; some servers leave it out."""
        for position, delta in enumerate(deltas or ()):
            index = delta.index
            if index is None:
                index = len(self._calls) + position if delta.id else max(self._calls, default=0)
            call = self._calls.setdefault(index, _OpenCall())
            call.call_id = call.call_id or delta.id or ""
            if delta.function is not None:
                call.name += delta.function.name or ""
                call.arguments += delta.function.arguments or ""


def _event(piece: Piece) -> WireEvent:
    return ThoughtDelta(piece.text) if piece.kind is Kind.THOUGHT else TextDelta(piece.text)


def _images(images: Any) -> list[WireEvent]:
    """Extension of some servers: images that the model made, as data URLs."""
    if not isinstance(images, list):
        return []
    urls = [one.image_url.url for one in images if isinstance(one, Told) and one.image_url]
    made = [image_from_data_url(url) for url in urls if isinstance(url, str)]
    return [ImageMade(image) for image in made if image is not None]


def _usage(counts: Told) -> Usage:
    prompt = counts.prompt_tokens_details
    completion = counts.completion_tokens_details
    return Usage(
        input_tokens=counts.prompt_tokens or 0,
        output_tokens=counts.completion_tokens or 0,
        cached_tokens=getattr(prompt, "cached_tokens", None) or 0,
        thought_tokens=getattr(completion, "reasoning_tokens", None) or 0,
        last_total_tokens=(counts.prompt_tokens or 0) + (counts.completion_tokens or 0),
    )
