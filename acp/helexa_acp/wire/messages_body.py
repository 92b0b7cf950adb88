"""Requests of POST /v1/messages, as dictionaries. Pure, and without its API's SDK: counting tokens
needs them too, whatever an endpoint is talked to in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helexa_acp.conversation.history import (
    AssistantTurn,
    Part,
    Text,
    Thought,
    ToolResult,
    Turn,
    UserTurn,
)
from helexa_acp.wire.base import ModelRequest, ToolSpec
from helexa_acp.wire.names import wire_name

MAX_TOKENS = 8192
"""The API wants a bound; this one where the configuration has none."""


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
    without any content is none."""
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
    """Signed thoughts are sent back, and no others; redacted thoughts come as blocks of their
    own."""
    blocks: list[dict[str, Any]] = []
    for thought in thoughts:
        if isinstance(thought.sealed, str):
            block = {"type": "thinking", "thinking": thought.text, "signature": thought.sealed}
            blocks.append(block)
        elif isinstance(thought.sealed, dict) and thought.sealed.get("type") == "redacted_thinking":
            blocks.append(thought.sealed)
    return blocks


def _blocks(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    """The API takes no empty text."""
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
