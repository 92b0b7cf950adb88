"""Answers as events, cut at random, and what an answer in a dialect comes to when it is read as the
gateway reads an upstream's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from inference.protocol import events as protocol
from inference.wire.upstream.answer_events import AnswerEvents, AnswerReader

R = "r"
MADE: dict[str, Any] = {"request_id": R, "clock": lambda: 1}
USAGE = protocol.Usage(prompt_tokens=9, completion_tokens=5, cached_tokens=4, reasoning_tokens=2)
Part = tuple[str, str]
"""A kind, ``text``, ``thought`` or ``call``, and its text."""
randoms = st.randoms(use_true_random=False)


def parts(texts: st.SearchStrategy[str], *, min_size: int = 0) -> st.SearchStrategy[list[Part]]:
    kinds = st.sampled_from(["text", "thought", "call"])
    return st.lists(st.tuples(kinds, texts), min_size=min_size, max_size=5)


def cut(text: str, random: Random) -> list[str]:
    pieces = []
    while text:
        length = random.randint(1, len(text))
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def events_of(answer: list[Part], random: Random | None = None) -> list[protocol.Event]:
    """``random`` cuts each part into pieces."""
    events: list[protocol.Event] = [
        protocol.Accepted(request_id=R, prompt_tokens=USAGE.prompt_tokens)
    ]
    for index, (kind, text) in enumerate(answer):
        if kind == "call":
            text = json.dumps({"a": text})
            of_call: dict[str, Any] = {"request_id": R, "call_index": index}
            events.append(protocol.ToolCallStarted(**of_call, call_id=f"call_{index}", name="f"))
        pieces = [text] if random is None else cut(text, random)
        match kind:
            case "call":
                events += [protocol.ToolCallDelta(**of_call, arguments=piece) for piece in pieces]
            case "text":
                events += [protocol.Delta(request_id=R, text=piece) for piece in pieces]
            case _:
                events.append(protocol.ReasoningDelta(request_id=R, text="", opens="<think>"))
                events += [protocol.ReasoningDelta(request_id=R, text=piece) for piece in pieces]
                events.append(protocol.ReasoningDelta(request_id=R, text="", closes="</think>"))
    return [
        *events,
        protocol.ChoiceFinished(request_id=R, reason="stop"),
        protocol.Finished(request_id=R, usage=USAGE),
    ]


def folded(encoder: Any, events: Iterable[protocol.Event]) -> bytes:
    return b"".join(map(encoder.encode, events))


def body_of(encoder: Any, events: Iterable[protocol.Event]) -> Any:
    (body,) = filter(None, map(encoder.encode, events))
    return json.loads(body)


def frames(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream that names them, as the Responses API's do."""
    read = []
    for frame in stream.decode().split("\n\n")[:-1]:
        name, data = re.fullmatch("event: (.*)\ndata: (.*)", frame).groups()  # type: ignore[union-attr]
        value = json.loads(data)
        assert value["type"] == name
        read.append(value)
    return read


def events_read(
    reader_of: Callable[[AnswerEvents], AnswerReader], frames: Iterable[bytes], **limits: Any
) -> list[protocol.Event]:
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
    usage: protocol.Usage | None = None


def content_of(events: Iterable[protocol.Event]) -> Content:
    """Returns the content of an answer with one choice."""
    found = Content()
    for event in events:
        match event:
            case protocol.ReasoningDelta():
                found.reasoning += event.text
            case protocol.Delta():
                found.text += event.text
            case protocol.ToolCallStarted():
                found.calls.append([event.call_id, event.name, ""])
            case protocol.ToolCallDelta():
                found.calls[-1][2] += event.arguments
            case protocol.ChoiceFinished():
                found.reason, found.stop_sequence = event.reason, event.stop_sequence
            case protocol.Finished():
                found.usage = event.usage
    return found
