"""What a compaction carries where the model's summary is not whole: as much of it as there is, and
the last of what it was to stand for, in the conversation's own words. Pure.

    ended by itself, with words ─▶ the summary
    cut off ─▶ up to its last whole sentence, a note, the last words
    empty ───▶                                 a note, the last words
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inference.protocol.events import FinishReason, Usage
from inference.wire.common.turn_parts import Called, Returned
from inference.wire.openai.responses.input import InputItem
from inference.wire.openai.responses.turns import Said, Summarised, TurnPart

MAX_LAST_CHARS = 4000
"""The longest that all last words are together."""
MAX_ONE_CHARS = 1000
SENTENCE_ENDS = (". ", ".\n", "! ", "? ", "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """``message`` says what happened, where it is not complete."""

    text: str
    status: Literal["complete", "cut_off", "missing"] = "complete"
    message: str | None = None


def settled(
    written: str, reason: FinishReason, usage: Usage, conversation: Sequence[InputItem]
) -> Summary:
    """``written`` is what the model wrote until it ended for ``reason``."""
    written = written.strip()
    if written and reason == "stop":
        return Summary(text=written)
    last = _last_words(conversation)
    if not written:
        message = "The model wrote no summary: the last words of the conversation stand for it."
        return Summary(text=f"[{message}]\n\n{last}", status="missing", message=message)
    message = (
        f"The model's summary was cut off after {usage.completion_tokens} tokens: the last words "
        "of the conversation follow it."
    )
    whole = _whole_sentences(written)
    return Summary(text=f"{whole}\n\n[{message}]\n\n{last}", status="cut_off", message=message)


def _whole_sentences(text: str) -> str:
    end = max(text.rfind(mark) for mark in SENTENCE_ENDS)
    return text[: end + 1].strip() if end > 0 else text


def _last_words(conversation: Sequence[InputItem]) -> str:
    """The newest first until there is enough, told in their order. A summary of before is kept
    whole: nothing else stands for what it does."""
    told: list[str] = []
    room = MAX_LAST_CHARS
    for item in reversed(conversation):
        words = _words(item.part)
        if isinstance(item.part, Summarised):
            told.append(words)
        elif words and len(words) <= room:
            told.append(words)
            room -= len(words)
    return "\n".join(reversed(told))


def _words(part: TurnPart) -> str:
    match part:
        case Said(role="assistant", text=text):
            return f"You said: {_short(text)}"
        case Called(call=call):
            return f"You called {call.name}: {_short(call.arguments)}"
        case Returned():
            return f"It returned: {_short(part.message.content or '')}"
        case Summarised(text=text):
            return text
    return ""


def _short(text: str) -> str:
    return text if len(text) <= MAX_ONE_CHARS else f"{text[:MAX_ONE_CHARS]}…"
