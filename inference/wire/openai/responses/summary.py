"""The text of a compaction, also where the model's summary is cut off or empty: then its whole
sentences, and the end of the conversation verbatim. Pure.

    ended by itself, with words ─▶ the summary
    cut off ─▶ up to its last whole sentence, a note, the last turns
    empty ───▶                                 a note, the last turns
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inference.protocol.events import FinishReason, Usage
from inference.wire.common.parts import Called, Returned
from inference.wire.openai.responses.input import InputItem
from inference.wire.openai.responses.turns import Message, Summarised, TurnPart

MAX_LAST_CHARS = 4000
"""Most characters of the last turns together."""
MAX_ONE_CHARS = 1000
SENTENCE_ENDS = (". ", ".\n", "! ", "? ", "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """``message`` describes why it is not complete."""

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
    last = _last_turns(conversation)
    if not written:
        message = "The model wrote no summary: the last turns of the conversation stand for it."
        return Summary(text=f"[{message}]\n\n{last}", status="missing", message=message)
    message = (
        f"The model's summary was cut off after {usage.completion_tokens} tokens: the last turns "
        "of the conversation follow it."
    )
    whole = _whole_sentences(written)
    return Summary(text=f"{whole}\n\n[{message}]\n\n{last}", status="cut_off", message=message)


def _whole_sentences(text: str) -> str:
    end = max(text.rfind(mark) for mark in SENTENCE_ENDS)
    return text[: end + 1].strip() if end > 0 else text


def _last_turns(conversation: Sequence[InputItem]) -> str:
    """The newest turns up to ``MAX_LAST_CHARS``, in their order. An earlier summary is kept whole,
    since its turns are gone."""
    kept: list[str] = []
    room = MAX_LAST_CHARS
    for item in reversed(conversation):
        words = _words(item.part)
        if isinstance(item.part, Summarised):
            kept.append(words)
        elif words and len(words) <= room:
            kept.append(words)
            room -= len(words)
    return "\n".join(reversed(kept))


def _words(part: TurnPart) -> str:
    match part:
        case Message(role="assistant", text=text):
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
