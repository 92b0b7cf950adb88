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
"""A kind, ``text``, ``thought`` or ``call`` of ``f``, and its text or arguments."""
randoms = st.randoms(use_true_random=False)
texts = st.text(max_size=20)
objects = texts.map(lambda text: json.dumps({"a": text}))


def parts(arguments: st.SearchStrategy[str] = objects) -> st.SearchStrategy[list[Part]]:
    kinds = {"text": texts, "thought": texts, "call": arguments}
    each = [st.tuples(st.just(kind), text) for kind, text in kinds.items()]
    return st.lists(st.one_of(each), max_size=5)


def spoken(arguments: st.SearchStrategy[str] = objects) -> st.SearchStrategy[list[Part]]:
    """One choice as models write it: a thought or none, a text, and up to two calls."""
    thought, calls = st.lists(texts, max_size=1), st.lists(arguments, max_size=2)
    return st.tuples(thought, texts, calls).map(
        lambda made: [
            *(("thought", one) for one in made[0]),
            ("text", made[1]),
            *(("call", one) for one in made[2]),
        ]
    )


def said(answer: list[Part], kind: str) -> list[str]:
    return [text for one, text in answer if one == kind]


def ending(answer: list[Part]) -> Any:
    return "tool_calls" if said(answer, "call") else "stop"


def cut(text: str, random: Random) -> list[str]:
    pieces = []
    while text:
        length = random.randint(1, len(text))
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def events_of_choice(
    answer: list[Part], random: Random | None = None, index: int = 0
) -> list[protocol.Event]:
    """``random`` cuts each part into pieces."""
    at: dict[str, Any] = {"request_id": R, "index": index}
    events: list[protocol.Event] = []
    num_calls = 0
    for kind, text in answer:
        pieces = [text] if random is None else cut(text, random)
        match kind:
            case "call":
                of_call = {**at, "call_index": num_calls}
                call_id = f"call_{index}_{num_calls}"
                num_calls += 1
                events.append(protocol.ToolCallStarted(**of_call, call_id=call_id, name="f"))
                events += [protocol.ToolCallDelta(**of_call, arguments=piece) for piece in pieces]
            case "text":
                events += [protocol.Delta(**at, text=piece) for piece in pieces]
            case _:
                first = pieces.pop(0) if pieces else ""
                events.append(protocol.ReasoningDelta(**at, text=first, opens="<think>"))
                events += [protocol.ReasoningDelta(**at, text=piece) for piece in pieces]
                events.append(protocol.ReasoningDelta(**at, text="", closes="</think>"))
    return [*events, protocol.ChoiceFinished(**at, reason=ending(answer))]


def events_of(answer: list[Part], random: Random | None = None) -> list[protocol.Event]:
    begun = protocol.Accepted(request_id=R, prompt_tokens=USAGE.prompt_tokens)
    ended = protocol.Finished(request_id=R, usage=USAGE)
    return [begun, *events_of_choice(answer, random), ended]


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
