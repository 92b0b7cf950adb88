"""A conversation as the page sends it, and as it is exported. Pure.

Fields are called as the page's script calls them. Images are data URLs among the turns, and so are
kept and exported with them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from metering.playground.errors import InvalidConversationError

MAX_TITLE_CHARS = 60
NO_TITLE = "New conversation"


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    id: str = ""
    name: str = ""
    arguments: str = ""
    result: str = ""


class Spoken(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    text: str = ""
    model: str = ""
    thinking: str = ""
    calls: list[ToolCall] = []
    finish: str = ""
    error: str = ""
    request_id: str = ""
    stats: dict[str, bool | int | float | None] | None = None
    is_running: bool = False
    """The page was left before it ended."""


class Answer(Spoken, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One model's answer, with its figures."""

    role: Literal["assistant"] = "assistant"


class Turn(Spoken, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A question, or the answer to one: ``beside`` has those of further models."""

    role: Literal["user", "assistant"]
    images: list[str] = []
    beside: list[Answer] = []


class ConversationState(msgspec.Struct, forbid_unknown_fields=True):
    turns: list[Turn]
    model: str = ""
    beside: list[str] = []
    account: str = ""
    system: str = ""
    sampling: dict[str, str] = {}
    thinking: str = ""
    tools: str = ""
    schema: str = ""


def parse_state(body: bytes) -> ConversationState:
    """Raises ``InvalidConversationError``."""
    try:
        return msgspec.json.decode(body, type=ConversationState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidConversationError(f"This is no conversation: {error}.") from error


def state_text(state: ConversationState) -> str:
    """JSON, in which a NUL is escaped."""
    return msgspec.json.encode(state).decode()


def state_values(text: str) -> dict[str, Any]:
    """The fields of what ``state_text`` returned."""
    values: dict[str, Any] = msgspec.json.decode(text)
    return values


def title_of(state: ConversationState) -> str:
    """The beginning of the first question."""
    first = next((turn.text for turn in state.turns if turn.role == "user"), "")
    return " ".join(printable(first).split())[:MAX_TITLE_CHARS] or NO_TITLE


def search_text_of(state: ConversationState) -> str:
    """Case-folded, without the characters that no database holds."""
    texts = [state.system]
    for turn in state.turns:
        texts += [turn.text, turn.thinking, *(answer.text for answer in turn.beside)]
    return searched("\n".join(filter(None, texts)))


def searched(words: str) -> str:
    return printable(words).casefold()


def printable(text: str) -> str:
    return text.replace("\x00", "")
