"""An upstream's message, of Anthropic's dialect, as our events.

Blocks, deltas and events of other kinds are skipped, as that API requires. A message that is not
streamed is read as one event.
Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event, FinishReason, Usage
from inference.wire.upstream.answer_events import (
    Answer,
    AnswerEvents,
    AnswerReader,
    UpstreamErrorObject,
    decoded,
    reason_of,
    tokens_of,
)

CHOICE = 0
REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "refusal": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "model_context_window_exceeded": "context",
}


class ContentBlock(msgspec.Struct):
    type: str
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: Any = None


class AnyDelta(msgspec.Struct):
    """A block's delta has a type, a message's has none."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class Started(msgspec.Struct):
    usage: Any = None


class MessageEvent(Answer):
    type: str = ""
    index: int | None = None
    message: Started | None = None
    content_block: ContentBlock | None = None
    delta: AnyDelta | None = None
    usage: Any = None
    content: list[ContentBlock] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


_decode = msgspec.json.Decoder(MessageEvent).decode


class MessagesEvents(AnswerReader):
    def __init__(self, answer: AnswerEvents, *, wants_logprobs: bool = False) -> None:
        super().__init__(answer)
        self._usage: dict[str, Any] = {}
        self._calls: set[int] = set()

    def read(self, data: bytes) -> list[Event]:
        event = decoded(_decode, data, "what is no event of a message")
        if event.type == "error":
            raise UpstreamErrorObject(event.error)
        match event.type:
            case "message_start":
                self._start(event.message.usage if event.message else None)
            case "content_block_start" if event.content_block is not None:
                self._open(event.index or 0, event.content_block)
            case "content_block_delta" if event.delta is not None:
                self._grow(event.index or 0, event.delta)
            case "content_block_stop":
                self._close(event.index or 0)
            case "message_delta":
                self._count(event.usage)
                self._answer.reported_usage = usage_of(self._usage)
                if event.delta is not None:
                    self._stop(event.delta.stop_reason, event.delta.stop_sequence)
            case "message_stop":
                self._answer.end()
            case "message":
                self._whole(event)
        return self._answer.take()

    def _whole(self, message: MessageEvent) -> None:
        self._start(message.usage)
        for index, block in enumerate(message.content or ()):
            self._open(index, block)
            self._close(index)
        self._answer.reported_usage = usage_of(self._usage)
        self._stop(message.stop_reason, message.stop_sequence)

    def _start(self, usage: Any) -> None:
        self._count(usage)
        self._answer.accept(_prompt_tokens(self._usage))

    def _open(self, index: int, block: ContentBlock) -> None:
        if block.type == "text" and block.text:
            self._answer.write(CHOICE, block.text)
        elif block.type == "thinking" and block.thinking:
            self._answer.think(CHOICE, block.thinking)
        elif block.type == "tool_use":
            self._answer.begin_call(CHOICE, index, block.name, block.id)
            self._calls.add(index)
            if block.input:
                arguments = orjson.dumps(block.input).decode()
                self._answer.add_arguments(CHOICE, index, arguments)

    def _grow(self, index: int, delta: AnyDelta) -> None:
        if delta.type == "text_delta" and delta.text:
            self._answer.write(CHOICE, delta.text)
        elif delta.type == "thinking_delta" and delta.thinking:
            self._answer.think(CHOICE, delta.thinking)
        elif delta.type == "input_json_delta" and delta.partial_json and index in self._calls:
            self._answer.add_arguments(CHOICE, index, delta.partial_json)

    def _close(self, index: int) -> None:
        if index in self._calls:
            self._calls.discard(index)
            self._answer.send_calls(CHOICE)

    def _stop(self, given: str | None, stop_sequence: str | None) -> None:
        if given is None:
            return
        reason = reason_of(REASONS, given)
        self._answer.finish(CHOICE, reason, stop_sequence if given == "stop_sequence" else None)

    def _count(self, usage: Any) -> None:
        """Numbers are of the whole message; a later event's replace the earlier ones."""
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}


def usage_of(reported: dict[str, Any]) -> Usage | None:
    prompt, completion = _prompt_tokens(reported), tokens_of(reported, "output_tokens")
    if prompt is None or completion is None:
        return None
    thought = tokens_of(reported.get("output_tokens_details"), "thinking_tokens") or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=tokens_of(reported, "cache_read_input_tokens") or 0,
        reasoning_tokens=min(thought, completion),
    )


def _prompt_tokens(reported: dict[str, Any]) -> int | None:
    """That API counts cache reads and writes apart."""
    fresh = tokens_of(reported, "input_tokens")
    if fresh is None:
        return None
    cached = tokens_of(reported, "cache_read_input_tokens") or 0
    return fresh + cached + (tokens_of(reported, "cache_creation_input_tokens") or 0)
