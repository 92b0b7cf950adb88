"""The parts of a chat's turn: texts, images, thoughts, calls, results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from inference.protocol.generation import ChatMessage, ToolCall
from inference.protocol.images import ImageRef
from inference.wire.errors import InvalidRequestError
from inference.wire.fields import Table, read_kind, wrong_type
from inference.wire.images import with_detail

PART_SEPARATOR = "\n"


Part = str | ImageRef


def joined_text(parts: Iterable[Part]) -> str:
    return PART_SEPARATOR.join([part for part in parts if isinstance(part, str)])


def parts_with_images(parts: Iterable[Part]) -> list[Part]:
    """Empty where there is no image."""
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


def read_parts(
    value: Any, path: str, tables: Mapping[str, Table], reason: Callable[[str], str]
) -> list[Part]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    parts: list[Part] = []
    for index, part in enumerate(value):
        kind, read = read_kind(part, f"{path}[{index}]", tables, reason)
        held = read[tables[kind].required[0]]
        parts.append(with_detail(held, read["detail"]) if "detail" in read else held)
    return parts


def without_answer_start(chat: list[ChatMessage]) -> tuple[list[ChatMessage], str]:
    """Removes a last turn of the assistant, which is the start of the answer."""
    *earlier, last = chat
    if last.role != "assistant":
        return chat, ""
    if last.tool_calls or last.reasoning:
        raise InvalidRequestError(
            "The last of 'messages' is the start of the answer and may hold text only.",
            param="messages",
        )
    return earlier, last.content or ""
