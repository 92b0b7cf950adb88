"""What a turn of a chat is made of, in dialects that write it as a list: thoughts, text, calls and
what they returned. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inference.protocol.generation import ChatMessage, ToolCall
from inference.protocol.images import ImageRef

PART_SEPARATOR = "\n"
"""Between parts of one kind that become one text."""


Part = str | ImageRef


def joined_text(parts: Iterable[Part]) -> str:
    """The text of those parts that are text."""
    return PART_SEPARATOR.join([part for part in parts if isinstance(part, str)])


def parts_with_images(parts: Iterable[Part]) -> list[Part]:
    """As ``ChatMessage`` has them: none where there is no image, and texts in a row are one."""
    given = list(parts)
    if not any(isinstance(part, ImageRef) for part in given):
        return []
    merged: list[Part] = []
    for part in given:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] = joined_text([merged[-1], part])
        else:
            merged.append(part)
    return merged


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Returned:
    call_id: str
    output: tuple[Part, ...]

    @property
    def message(self) -> ChatMessage:
        return ChatMessage(
            role="tool",
            content=joined_text(self.output),
            tool_call_id=self.call_id,
            parts=parts_with_images(self.output),
        )
