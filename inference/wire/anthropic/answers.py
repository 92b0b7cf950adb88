"""A request's events as Anthropic's stream events or as one message.

    message_start ping (content_block_start content_block_delta* content_block_stop)*
    message_delta message_stop

One block is open at a time; none is empty.
Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
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
from inference.wire.error_envelopes import anthropic_errors

Display = Literal["hidden", "omitted", "shown"]
"""Thinking blocks in the answer: none, without their text, or whole."""


Kind = Literal["text", "thinking", "tool_use"]

SIGNATURE_START = b"helexa thinking\n"
"""Clients expect and return a signature. It is a fingerprint that nothing checks."""
NO_MORE: dict[str, Any] = {"stop_details": None, "container": None}
"""The API's schema requires these fields of a message's end."""
STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "context": "model_context_window_exceeded",
}
EMPTY_BLOCKS: dict[Kind, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
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


class MessageBodyEncoder:
    def __init__(self, model: str, style: Style, request_id: str) -> None:
        self._head = {
            "id": f"msg_{request_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._style = style
        self._open: Kind | None = None
        self._thought = hashlib.sha256(SIGNATURE_START)
        self._finished: ChoiceFinished | None = None
        self._content: list[dict[str, Any]] = []
        self._pieces: list[str] = []

    def encode(self, event: Event) -> bytes:
        match event:
            case Accepted():
                return self._start(event.prompt_tokens)
            case Delta() if event.text:
                return self._begin("text") + self._add("text", event.text)
            case ReasoningDelta() if self._style.thinking != "hidden":
                return self._think(event)
            case ToolCallStarted():
                # Ids are made without a dialect; this one's clients expect their own prefix.
                call_id = "toolu_" + event.call_id.removeprefix("call_")
                block = {"type": "tool_use", "id": call_id, "name": event.name, "input": {}}
                return self._begin("tool_use", block)
            case ToolCallDelta():
                return self._add("tool_use", event.arguments)
            case ChoiceFinished():
                self._finished = event
                return self._close()
            case Finished():
                return self._finish(event.usage)
        return b""

    def _think(self, event: ReasoningDelta) -> bytes:
        frames = b""
        if event.text:
            frames = self._begin("thinking")
            self._thought.update(event.text.encode())
            if self._style.thinking == "shown":
                frames += self._add("thinking", event.text)
        if event.closes is not None and self._open == "thinking":
            frames += self._close()
        return frames

    def _begin(self, kind: Kind, block: dict[str, Any] | None = None) -> bytes:
        if self._open == kind and block is None:
            return b""
        closed = self._close()
        self._open = kind
        return closed + self._open_block(block or EMPTY_BLOCKS[kind])

    def _close(self) -> bytes:
        kind, self._open = self._open, None
        if kind is None:
            return b""
        if kind != "thinking":
            return self._close_block(None)
        thought, self._thought = self._thought, hashlib.sha256(SIGNATURE_START)
        return self._close_block(base64.b64encode(thought.digest()).decode())

    def _finish(self, usage: Usage) -> bytes:
        assert self._finished is not None, "a request finished before its choice"
        sequence = self._finished.stop_sequence
        reason = STOP_REASONS[self._finished.reason] if sequence is None else "stop_sequence"
        more: dict[str, Any] = {"usage": usage_object(usage)}
        if self._style.reports_edits:
            more["context_management"] = {"applied_edits": []}
        return self._end({"stop_reason": reason, "stop_sequence": sequence, **NO_MORE}, more)

    def _start(self, prompt_tokens: int) -> bytes:
        return b""

    def _open_block(self, block: dict[str, Any]) -> bytes:
        self._content.append({**block})
        return b""

    def _add(self, kind: Kind, text: str) -> bytes:
        self._pieces.append(text)
        return b""

    def _close_block(self, signature: str | None) -> bytes:
        block, joined = self._content[-1], "".join(self._pieces)
        self._pieces = []
        if block["type"] == "tool_use":
            block["input"] = orjson.Fragment(joined)
        else:
            block[block["type"]] = joined
        if signature is not None:
            block["signature"] = signature
        return b""

    def _end(self, stop: dict[str, Any], more: dict[str, Any]) -> bytes:
        return orjson.dumps({**self._head, "content": self._content, **stop, **more})


class MessageStreamEncoder(MessageBodyEncoder):
    _index = -1

    def _start(self, prompt_tokens: int) -> bytes:
        """``message_delta`` reports the cached tokens."""
        usage = usage_object(Usage(prompt_tokens=prompt_tokens, completion_tokens=0))
        unended = {"content": [], "stop_reason": None, "stop_sequence": None, **NO_MORE}
        message = {**self._head, **unended, "usage": usage}
        return _frame("message_start", message=message) + anthropic_errors.keep_alive_frame

    def _open_block(self, block: dict[str, Any]) -> bytes:
        self._index += 1
        return _frame("content_block_start", index=self._index, content_block=block)

    def _add(self, kind: Kind, text: str) -> bytes:
        type_, key = DELTAS[kind]
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":%b}}\n\n' % (self._index, type_, key, orjson.dumps(text))
        )

    def _close_block(self, signature: str | None) -> bytes:
        signed = b""
        if signature is not None:
            delta = {"type": "signature_delta", "signature": signature}
            signed = _frame("content_block_delta", index=self._index, delta=delta)
        return signed + _frame("content_block_stop", index=self._index)

    def _end(self, stop: dict[str, Any], more: dict[str, Any]) -> bytes:
        return _frame("message_delta", delta=stop, **more) + _frame("message_stop")


def usage_object(usage: Usage) -> dict[str, Any]:
    """That API does not count cached tokens in ``input_tokens``. Cache writes are not charged."""
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


def _frame(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
