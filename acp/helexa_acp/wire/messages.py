"""POST /v1/messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from helexa_acp.history import (
    AssistantTurn,
    Part,
    Text,
    Thought,
    ToolResult,
    Turn,
    Usage,
    UserTurn,
)
from helexa_acp.wire import (
    Finished,
    JsonObject,
    ModelRequest,
    OpenCall,
    Reason,
    TextDelta,
    ThoughtDelta,
    ThoughtSealed,
    ToolSpec,
    WireEvent,
    wire_name,
)

PATH = "/messages"
MAX_TOKENS = 8192
"""The API requires a limit; this one is used where the configuration has none."""
REASONS: dict[str, Reason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


def headers(key: str | None) -> dict[str, str]:
    return {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})


def request_body(request: ModelRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": request.model,
        "system": request.system,
        "messages": messages(request.turns),
        "max_tokens": request.max_tokens or MAX_TOKENS,
        "stream": True,
    }
    if request.tools:
        body["tools"] = tools(request.tools)
    if request.asks_for_thinking:
        body["thinking"] = {"type": "adaptive"}
    return body


def tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in specs
    ]


def messages(turns: tuple[Turn, ...]) -> list[dict[str, Any]]:
    """Roles alternate: results and the user's next text share a message. An assistant's turn
    without content is skipped."""
    written: list[dict[str, Any]] = []
    for turn in turns:
        role, content = _message(turn)
        if not content:
            continue
        if written and written[-1]["role"] == role:
            written[-1]["content"] += content
        else:
            written.append({"role": role, "content": content})
    return written


def _message(turn: Turn) -> tuple[str, list[dict[str, Any]]]:
    match turn:
        case UserTurn(parts):
            return "user", _blocks(parts)
        case ToolResult():
            block = {
                "type": "tool_result",
                "tool_use_id": turn.call_id,
                "content": _blocks(turn.parts),
                "is_error": turn.is_error,
            }
            return "user", [block]
        case AssistantTurn():
            text = [{"type": "text", "text": turn.text}] if turn.text.strip() else []
            calls = [
                {
                    "type": "tool_use",
                    "id": call.call_id,
                    "name": wire_name(call.name),
                    "input": call.arguments,
                }
                for call in turn.calls
            ]
            return "assistant", [*_thinking(turn.thoughts), *text, *calls]


def _thinking(thoughts: tuple[Thought, ...]) -> list[dict[str, Any]]:
    """Only signed thoughts are sent back; redacted thoughts are blocks of their own."""
    blocks: list[dict[str, Any]] = []
    for thought in thoughts:
        if isinstance(thought.sealed, str):
            block = {"type": "thinking", "thinking": thought.text, "signature": thought.sealed}
            blocks.append(block)
        elif isinstance(thought.sealed, dict) and thought.sealed.get("type") == "redacted_thinking":
            blocks.append(thought.sealed)
    return blocks


def _blocks(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    """The API refuses empty text."""
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {
            "type": "image",
            "source": {"type": "base64", "media_type": part.mime_type, "data": part.data},
        }
        for part in parts
        if not isinstance(part, Text) or part.text.strip()
    ]


class Answer:
    """Folds the stream's events into ours."""

    def __init__(self) -> None:
        self.is_ended = False
        self._call: OpenCall | None = None
        self._given: Any = None
        """The input in the call's first event."""
        self._signature = ""
        self._reason: Reason = "stop"
        self._usage = Usage()

    def feed(self, event: JsonObject) -> list[WireEvent]:
        match event.type:
            case "message_start":
                self._count(event.message.usage)
            case "content_block_start":
                return self._block_started(event.content_block)
            case "content_block_delta":
                return self._delta(event.delta)
            case "content_block_stop":
                return self._block_stopped()
            case "message_delta":
                self._reason = REASONS.get(event.delta.stop_reason or "", "stop")
                self._count(event.usage)
            case "message_stop":
                self.is_ended = True
                return [Finished(self._reason, self._usage)]
        return []

    def finish(self) -> list[WireEvent]:
        """Raises ValueError where the stream was incomplete."""
        if not self.is_ended:
            raise ValueError("it ended without message_stop")
        return []

    def _block_started(self, block: JsonObject) -> list[WireEvent]:
        match block.type:
            case "tool_use":
                self._call = OpenCall(block.id or "", block.name or "")
                self._given = block.raw.get("input")
            case "text" if block.text:
                return [TextDelta(block.text)]
            case "thinking":
                self._signature = block.signature or ""
                return [ThoughtDelta(block.thinking)] if block.thinking else []
            case "redacted_thinking":
                return [ThoughtSealed(block.without_nulls())]
        return []

    def _delta(self, delta: JsonObject) -> list[WireEvent]:
        match delta.type:
            case "text_delta":
                return [TextDelta(delta.text)]
            case "thinking_delta":
                return [ThoughtDelta(delta.thinking)]
            case "signature_delta":
                self._signature += delta.signature
            case "input_json_delta" if self._call is not None:
                self._call.arguments += delta.partial_json
        return []

    def _block_stopped(self) -> list[WireEvent]:
        call, self._call = self._call, None
        signature, self._signature = self._signature, ""
        if call is not None:
            if self._given and not call.arguments:
                call.arguments = json.dumps(self._given)
            return [call.made()]
        return [ThoughtSealed(signature)] if signature else []

    def _count(self, counts: JsonObject | None) -> None:
        """Later counts replace earlier ones; a missing count stays as it was."""
        if counts is None:
            return
        fresh = counts.input_tokens
        read = counts.cache_read_input_tokens or 0
        made = counts.cache_creation_input_tokens or 0
        if fresh is not None:
            self._usage.input_tokens = fresh + read + made
            self._usage.cached_tokens = read
        self._usage.output_tokens = counts.output_tokens or 0
        self._usage.last_total_tokens = self._usage.input_tokens + self._usage.output_tokens
