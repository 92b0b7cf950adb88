"""What each input item of a Responses request adds to the chat, and the turns they make together.

Reasoning, text and calls that follow one another are one assistant turn. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from inference.protocol.generation import ChatMessage
from inference.wire.common.parts import (
    PART_SEPARATOR,
    Called,
    Part,
    Returned,
    Thought,
    joined_text,
    parts_with_images,
)

ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}

SUMMARY_LEAD = "The conversation so far, in short:"


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return joined_text(self.parts)


@dataclass(frozen=True, slots=True)
class Referred:
    """Stands for the stored item of that id. ``path`` is where it stood, for refusals."""

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class Summarised:
    text: str


TurnPart = Message | Thought | Called | Returned | Referred | Summarised


def chat_messages(parts: Iterable[TurnPart]) -> list[ChatMessage]:
    turns: list[ChatMessage] = []
    for part in parts:
        match part:
            case Message(role="assistant"):
                _extend_assistant(turns, ChatMessage(role="assistant", content=part.text))
            case Message(role=role):
                images = parts_with_images(part.parts)
                turns.append(ChatMessage(role=role, content=part.text, parts=images))
            case Thought(text=thought) if thought:
                _extend_assistant(turns, ChatMessage(role="assistant", reasoning=thought))
            case Summarised(text=summary):
                lead = f"{SUMMARY_LEAD}\n\n{summary}"
                _extend_assistant(turns, ChatMessage(role="assistant", content=lead))
            case Called(call=call):
                _extend_assistant(turns, ChatMessage(role="assistant", tool_calls=[call]))
            case Returned():
                turns.append(part.message)
    return turns


def _extend_assistant(turns: list[ChatMessage], more: ChatMessage) -> None:
    """A turn is thought, then text, then calls; what cannot come next begins another turn."""
    last = turns[-1] if turns else None
    if last is None or last.role != "assistant" or not _may_follow(last, more):
        turns.append(more)
        return
    turns[-1] = _joined_turn(last, more)


def _may_follow(last: ChatMessage, more: ChatMessage) -> bool:
    if more.tool_calls:
        return True
    return last.content is None and not last.tool_calls and last.reasoning is not None


def _joined_turn(last: ChatMessage, more: ChatMessage) -> ChatMessage:
    thoughts = [turn.reasoning for turn in (last, more) if turn.reasoning is not None]
    return ChatMessage(
        role="assistant",
        content=last.content if more.content is None else more.content,
        tool_calls=[*last.tool_calls, *more.tool_calls],
        reasoning=PART_SEPARATOR.join(thoughts) if thoughts else None,
    )


def earlier_turns(messages: Sequence[ChatMessage]) -> list[int]:
    """How many messages the first turn is, the first two, and so on up to all but the last. A turn
    begins with a message of the user."""
    begins = [index for index, message in enumerate(messages) if message.role == "user"]
    return begins[1:]
