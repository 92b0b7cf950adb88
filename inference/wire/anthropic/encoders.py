"""A request's events as Anthropic's stream events or as one message.

    events ─▶ Blocks ─▶ Opened, Grew, Closed ─┬▶ MessageStreamEncoder   a frame for each
                                              └▶ MessageBodyEncoder     a fold over the same

    message_start ping (content_block_start content_block_delta* content_block_stop)*
    message_delta message_stop

``Blocks`` alone decides where a block begins and ends.
Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming. Pure.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.wire.anthropic.errors import KEEP_ALIVE_FRAME
from inference.wire.anthropic.fields import Display

Kind = Literal["text", "thinking", "tool_use"]


@dataclass(frozen=True, slots=True)
class Opened:
    kind: Kind
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Grew:
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    signature: str | None = None


Step = Opened | Grew | Closed


SIGNATURE_START = b"helexa thinking\n"
"""A thinking block's signature is a fingerprint of its text, because clients expect the field and
send it back. Nothing checks it."""


class Blocks:
    """One answer's content as blocks, one open at a time. A block of text or thinking opens with
    its first character, so none is empty."""

    def __init__(self, thinking: Display) -> None:
        self._thinking = thinking
        self._open: Kind | None = None
        self._thought = hashlib.sha256(SIGNATURE_START)

    def take(self, event: Event) -> list[Step]:
        match event:
            case Delta():
                return self._grow("text", event.text) if event.text else []
            case ReasoningDelta():
                return self._think(event)
            case ToolCallStarted():
                closed = self._close()
                self._open = "tool_use"
                return [*closed, Opened("tool_use", _tool_use_id(event.call_id), event.name)]
            case ToolCallDelta():
                return [Grew("tool_use", event.arguments)]
            case ChoiceFinished():
                return self._close()
        return []

    def _think(self, event: ReasoningDelta) -> list[Step]:
        if self._thinking == "hidden":
            return []
        steps: list[Step] = []
        if event.text:
            steps = self._grow("thinking", event.text)
            self._thought.update(event.text.encode())
            if self._thinking == "omitted":
                steps.pop()
        if event.closes is not None and self._open == "thinking":
            steps += self._close()
        return steps

    def _grow(self, kind: Kind, text: str) -> list[Step]:
        if self._open == kind:
            return [Grew(kind, text)]
        steps = self._close()
        self._open = kind
        return [*steps, Opened(kind), Grew(kind, text)]

    def _close(self) -> list[Step]:
        kind, self._open = self._open, None
        if kind is None:
            return []
        if kind != "thinking":
            return [Closed()]
        thought, self._thought = self._thought, hashlib.sha256(SIGNATURE_START)
        return [Closed(base64.b64encode(thought.digest()).decode())]


def _tool_use_id(call_id: str) -> str:
    """Ids are made without a dialect; this one's clients expect their own prefix."""
    return "toolu_" + call_id.removeprefix("call_")


NO_MORE: dict[str, Any] = {"stop_details": None, "container": None}
"""Fields of a message's end that the API's schema requires; always null here."""
STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "context": "model_context_window_exceeded",
}
DELTAS: dict[Kind, tuple[bytes, bytes]] = {
    "text": (b"text_delta", b"text"),
    "thinking": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    thinking: Display = "hidden"
    reports_edits: bool = False
    """A request with ``context_management`` gets an empty list of applied edits."""


class MessageStreamEncoder:
    def __init__(self, model: str, style: Style, request_id: str) -> None:
        self._head = _head(model, request_id)
        self._style = style
        self._blocks = Blocks(style.thinking)
        self._index = -1
        self._finished: ChoiceFinished | None = None

    def encode(self, event: Event) -> bytes:
        match event:
            case Accepted():
                return self._start(event.prompt_tokens) + KEEP_ALIVE_FRAME
            case Finished():
                return self._end(event.usage)
            case ChoiceFinished():
                self._finished = event
        return b"".join([self._frames(step) for step in self._blocks.take(event)])

    def _frames(self, step: Step) -> bytes:
        match step:
            case Grew():
                type_, key = DELTAS[step.kind]
                return (
                    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
                    b'"delta":{"type":"%b","%b":%b}}\n\n'
                    % (self._index, type_, key, orjson.dumps(step.text))
                )
            case Opened():
                self._index += 1
                block = _empty_block(step)
                return _frame("content_block_start", index=self._index, content_block=block)
            case Closed():
                return self._signed(step) + _frame("content_block_stop", index=self._index)

    def _signed(self, closed: Closed) -> bytes:
        if closed.signature is None:
            return b""
        delta = {"type": "signature_delta", "signature": closed.signature}
        return _frame("content_block_delta", index=self._index, delta=delta)

    def _start(self, prompt_tokens: int) -> bytes:
        """The number of cached prompt tokens is not known yet; ``message_delta`` has it."""
        usage = usage_object(Usage(prompt_tokens=prompt_tokens, completion_tokens=0))
        message = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            **NO_MORE,
            "usage": usage,
        }
        return _frame("message_start", message=message)

    def _end(self, usage: Usage) -> bytes:
        end: dict[str, Any] = {"delta": _stop(self._finished), "usage": usage_object(usage)}
        if self._style.reports_edits:
            end["context_management"] = _no_edits()
        return _frame("message_delta", **end) + _frame("message_stop")


@dataclass(slots=True)
class _Block:
    opened: Opened
    pieces: list[str] = field(default_factory=list)
    signature: str | None = None

    def content(self) -> dict[str, Any]:
        joined = "".join(self.pieces)
        match self.opened.kind:
            case "text":
                return {"type": "text", "text": joined}
            case "thinking":
                return {"type": "thinking", "thinking": joined, "signature": self.signature}
            case "tool_use":
                # The pieces are one JSON object: the same text as in a stream.
                return {**_empty_block(self.opened), "input": orjson.Fragment(joined)}


class MessageBodyEncoder:
    def __init__(self, model: str, style: Style, request_id: str) -> None:
        self._head = _head(model, request_id)
        self._style = style
        self._blocks = Blocks(style.thinking)
        self._content: list[_Block] = []
        self._finished: ChoiceFinished | None = None

    def encode(self, event: Event) -> bytes:
        match event:
            case Finished():
                return self._body(event.usage)
            case ChoiceFinished():
                self._finished = event
        for step in self._blocks.take(event):
            self._fold(step)
        return b""

    def _fold(self, step: Step) -> None:
        match step:
            case Opened():
                self._content.append(_Block(step))
            case Grew():
                self._content[-1].pieces.append(step.text)
            case Closed():
                self._content[-1].signature = step.signature

    def _body(self, usage: Usage) -> bytes:
        body = {
            **self._head,
            "content": [block.content() for block in self._content],
            **_stop(self._finished),
            "usage": usage_object(usage),
        }
        if self._style.reports_edits:
            body["context_management"] = _no_edits()
        return orjson.dumps(body)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Cached tokens are not among ``input_tokens``, as that API counts. Writing to the cache is
    never charged, so no token counts as that."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "cache_creation": None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def _head(model: str, request_id: str) -> dict[str, Any]:
    return {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}


def _stop(finished: ChoiceFinished | None) -> dict[str, Any]:
    assert finished is not None, "a request finished before its choice"
    reason = STOP_REASONS[finished.reason]
    if finished.stop_sequence is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": finished.stop_sequence, **NO_MORE}


def _no_edits() -> dict[str, Any]:
    return {"applied_edits": []}


def _empty_block(opened: Opened) -> dict[str, Any]:
    match opened.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "tool_use":
            return {"type": "tool_use", "id": opened.call_id, "name": opened.name, "input": {}}


def _frame(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
