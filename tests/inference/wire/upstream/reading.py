"""An upstream's answer, read as the gateway reads one, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.wire.upstream.answer_events import AnswerEvents, AnswerReader


def events_read(
    reader_of: Callable[[AnswerEvents], AnswerReader], frames: Iterable[bytes], **limits: Any
) -> list[Event]:
    given = {"num_choices": 1, "prompt_tokens": 3, "max_prompt_tokens": 1_000, **limits}
    answer = AnswerEvents("r", **{"max_output_tokens": 1_000, **given})
    reader = reader_of(answer)
    found = [event for frame in frames for event in reader.read(frame)]
    answer.end()
    return found + answer.take()


@dataclass
class Content:
    reasoning: str = ""
    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    """Id, name and arguments."""
    reason: str = ""
    stop_sequence: str | None = None
    usage: Usage | None = None


def content_of(events: Iterable[Event]) -> Content:
    """Returns the content of an answer with one choice."""
    found = Content()
    for event in events:
        match event:
            case ReasoningDelta():
                found.reasoning += event.text
            case Delta():
                found.text += event.text
            case ToolCallStarted():
                found.calls.append([event.call_id, event.name, ""])
            case ToolCallDelta():
                found.calls[-1][2] += event.arguments
            case ChoiceFinished():
                found.reason, found.stop_sequence = event.reason, event.stop_sequence
            case Finished():
                found.usage = event.usage
    return found
