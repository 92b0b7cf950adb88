"""A conversation as values, and as the JSON of a session's file. Pure.

UserTurn, AssistantTurn (text, thoughts, calls), ToolResult (one for each call), UserTurn, ...
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field

INVALID_CALL = "<invalid>"
"""The name of a call that could not be parsed."""
INTERRUPTED = "interrupted before it was done."


class Text(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class Image(Struct, frozen=True, tag_field="type", tag="image"):
    mime_type: str
    data: str
    """Base64."""


Part = Text | Image


class Thought(Struct, frozen=True):
    """``sealed`` is sent back to the endpoint unchanged: a signature, or an item."""

    text: str
    sealed: Any = None


class ToolCall(Struct, frozen=True):
    call_id: str = field(name="id")
    name: str
    arguments: dict[str, Any]


class UserTurn(Struct, frozen=True, tag_field="role", tag="user"):
    parts: tuple[Part, ...]


class AssistantTurn(Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    text: str = ""
    thoughts: tuple[Thought, ...] = ()
    calls: tuple[ToolCall, ...] = ()


class ToolResult(Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    call_id: str
    name: str
    parts: tuple[Part, ...]
    is_error: bool = False


Turn = UserTurn | AssistantTurn | ToolResult


@dataclass(slots=True)
class Usage:
    """Tokens by the endpoint's count; requests add up."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    thought_tokens: int = 0
    last_total_tokens: int = dataclasses.field(default=0, compare=False)
    """Prompt and answer of the latest request: the present use of the context."""

    def add(self, other: Usage) -> None:
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.thought_tokens += other.thought_tokens
        self.last_total_tokens = other.input_tokens + other.output_tokens or self.last_total_tokens


def text_of(parts: tuple[Part, ...]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def answered(history: list[Turn]) -> list[Turn]:
    """The history with a result for every call: a process that died may have left some without."""
    results = {turn.call_id for turn in history if isinstance(turn, ToolResult)}
    whole: list[Turn] = []
    missing: list[ToolResult] = []
    for turn in history:
        if not isinstance(turn, ToolResult):
            whole += missing
            missing = []
        whole.append(turn)
        if isinstance(turn, AssistantTurn):
            unanswered = (call for call in turn.calls if call.call_id not in results)
            missing = [failed(call, INTERRUPTED) for call in unanswered]
    return whole + missing


def failed(call: ToolCall, why: str) -> ToolResult:
    parts = (Text(f"ERROR: {why}"),)
    return ToolResult(call_id=call.call_id, name=call.name, parts=parts, is_error=True)


def clean(value: Any) -> Any:
    """JSON without lone surrogates, which UTF-8 cannot encode."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [clean(one) for one in value]
    if isinstance(value, dict):
        return {clean(key): clean(one) for key, one in value.items()}
    return value
