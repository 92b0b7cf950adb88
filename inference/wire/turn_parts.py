"""What a turn of a chat is made of, in dialects that write it as a list: thoughts, text, calls and
what they returned. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from inference.protocol.generation import ChatMessage, ToolCall

PART_SEPARATOR = "\n"
"""Between parts of one kind that become one text."""


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Returned:
    call_id: str
    output: str

    @property
    def message(self) -> ChatMessage:
        return ChatMessage(role="tool", content=self.output, tool_call_id=self.call_id)
