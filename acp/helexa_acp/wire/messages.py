"""POST /v1/messages."""

from __future__ import annotations

import json
from dataclasses import dataclass

from helexa_acp import history, wire

PATH = "/messages"
MAX_TOKENS = 8192
"""The API requires a limit."""
REASONS: dict[str, wire.Reason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


def headers(key: str | None) -> dict[str, str]:
    return {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})


def request_body(request: wire.ModelRequest) -> wire.Json:
    body: wire.Json = {
        "model": request.model,
        "system": request.system,
        "messages": messages(request.turns),
        "max_tokens": request.max_tokens or MAX_TOKENS,
        "stream": True,
    }
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ]
    if request.asks_for_thinking:
        body["thinking"] = {"type": "adaptive"}
    return body


def count_body(request: wire.ModelRequest) -> wire.Json:
    """For ``/messages/count_tokens``."""
    body = request_body(request)
    return {name: body[name] for name in ("model", "system", "messages", "tools") if name in body}


def messages(turns: tuple[history.Turn, ...]) -> list[wire.Json]:
    """Roles alternate: results and the user's next text share a message."""
    written: list[wire.Json] = []
    for turn in turns:
        role = "assistant" if isinstance(turn, history.AssistantTurn) else "user"
        content = _content(turn)
        if not content:
            continue
        if written and written[-1]["role"] == role:
            written[-1]["content"] += content
        else:
            written.append({"role": role, "content": content})
    return written


def _content(turn: history.Turn) -> list[wire.Json]:
    match turn:
        case history.UserTurn(parts):
            return _blocks(parts)
        case history.ToolResult():
            block = {
                "type": "tool_result",
                "tool_use_id": turn.call_id,
                "content": _blocks(turn.parts),
                "is_error": turn.is_error,
            }
            return [block]
        case history.AssistantTurn():
            text = [{"type": "text", "text": turn.text}] if turn.text.strip() else []
            calls = [
                {
                    "type": "tool_use",
                    "id": call.call_id,
                    "name": wire.wire_name(call.name),
                    "input": call.arguments,
                }
                for call in turn.calls
            ]
            return [*_thinking(turn.thoughts), *text, *calls]


def _thinking(thoughts: tuple[history.Thought, ...]) -> list[wire.Json]:
    """Only signed thoughts are sent back; redacted thoughts are blocks of their own."""
    blocks: list[wire.Json] = []
    for thought in thoughts:
        if isinstance(thought.sealed, str):
            block = {"type": "thinking", "thinking": thought.text, "signature": thought.sealed}
            blocks.append(block)
        elif isinstance(thought.sealed, dict) and thought.sealed.get("type") == "redacted_thinking":
            blocks.append(thought.sealed)
    return blocks


def _blocks(parts: tuple[history.Part, ...]) -> list[wire.Json]:
    """The API refuses empty text."""
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, history.Text)
        else {
            "type": "image",
            "source": {"type": "base64", "media_type": part.mime_type, "data": part.data},
        }
        for part in parts
        if not isinstance(part, history.Text) or part.text.strip()
    ]


@dataclass(slots=True)
class Answer(wire.AnswerState):
    signature: str = ""

    def feed(self, event: wire.JsonObject) -> list[wire.WireEvent]:
        match event.type:
            case "message_start":
                self._count(event.message.usage)
            case "content_block_start":
                return self._block_started(event.content_block)
            case "content_block_delta":
                return self._delta(event.delta)
            case "content_block_stop" if self.signature:
                signature, self.signature = self.signature, ""
                return [wire.ThoughtSealed(signature)]
            case "message_delta":
                self.reason = REASONS.get(event.delta.stop_reason or "", "stop")
                self._count(event.usage)
            case "message_stop":
                self.is_ended = True
        return []

    def _block_started(self, block: wire.JsonObject) -> list[wire.WireEvent]:
        match block.type:
            case "tool_use":
                given = block.raw.get("input")  # whole, from some servers
                arguments = json.dumps(given) if given else ""
                self.calls.append(wire.CallMade(block.id or "", block.name or "", arguments))
            case "text" if block.text:
                return [wire.TextDelta(block.text)]
            case "thinking":
                self.signature = block.signature or ""
                return [wire.ThoughtDelta(block.thinking)] if block.thinking else []
            case "redacted_thinking":
                return [wire.ThoughtSealed(block.without_nulls())]
        return []

    def _delta(self, delta: wire.JsonObject) -> list[wire.WireEvent]:
        match delta.type:
            case "text_delta":
                return [wire.TextDelta(delta.text)]
            case "thinking_delta":
                return [wire.ThoughtDelta(delta.thinking)]
            case "signature_delta":
                self.signature += delta.signature
            case "input_json_delta" if self.calls:
                self.calls[-1].arguments += delta.partial_json
        return []

    def _count(self, counts: wire.JsonObject | None) -> None:
        """Later counts replace earlier ones; a missing count stays as it was."""
        if counts is None:
            return
        if counts.input_tokens is not None:
            read = counts.cache_read_input_tokens or 0
            made = counts.cache_creation_input_tokens or 0
            self.usage.input_tokens = counts.input_tokens + read + made
            self.usage.cached_tokens = read
        self.usage.output_tokens = counts.output_tokens or 0
