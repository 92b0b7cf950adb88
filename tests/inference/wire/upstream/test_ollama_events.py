"""An upstream's lines of Ollama's dialect as events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.request.answer_check import AnswerCheck
from inference.protocol.events import Accepted, Delta, Event, Finished, Usage
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from inference.wire.ollama.answers import OllamaBodyEncoder, OllamaStreamEncoder, Shape
from inference.wire.upstream.answer_events import UpstreamErrorObject, UpstreamFaultError
from inference.wire.upstream.frames import FrameError, LinesReader
from inference.wire.upstream.ollama import OllamaEvents
from tests.cases import each_case
from tests.inference.wire.test_encoders import USAGE, R, Spoken, events_of_choice, randoms
from tests.inference.wire.upstream.reading import content_of, events_read
from tests.inference.wire.upstream.test_messages_events import SPOKEN

REQUEST = GenerationRequest(model="m", input=ChatInput(messages=[ChatMessage(role="user")]))
WORDS = ["message", "content", "thinking", "tool_calls", "function", "name", "arguments", "done"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner),
)


def line(content: str = "", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "message": {"role": "assistant", "content": content}, **fields}


def read(*lines: Any, **options: Any) -> list[Event]:
    return events_read(
        lambda answer: OllamaEvents(answer, **options), [json.dumps(one).encode() for one in lines]
    )


DONE = line(done=True, done_reason="stop", prompt_eval_count=5, eval_count=2)


@given(SPOKEN, randoms, st.booleans())
def test_what_is_written_in_that_dialect_is_read_again(
    spoken: Spoken, random: Random, is_chat: bool
) -> None:
    calls = spoken.calls if is_chat else []
    spoken = Spoken(spoken.reasoning, spoken.text, calls)
    events: list[Event] = [
        Accepted(request_id=R, prompt_tokens=1),
        *events_of_choice(0, spoken, random),
        Finished(request_id=R, usage=USAGE),
    ]
    shape = Shape(model="m", is_chat=is_chat)
    stream = OllamaStreamEncoder(shape, lambda: 1.0)
    whole = OllamaBodyEncoder(shape, lambda: 1.0)
    sent = b"".join(stream.encode(event) for event in events)
    body = b"".join(whole.encode(event) for event in events)
    for found in (
        content_of(events_read(OllamaEvents, LinesReader().feed(sent))),
        content_of(events_read(OllamaEvents, [body])),
    ):
        assert (found.reasoning, found.text) == (spoken.reasoning or "", spoken.text)
        assert [(name, json.loads(arguments)) for _, name, arguments in found.calls] == [
            (name, json.loads(arguments)) for name, arguments in calls
        ]
        assert found.reason == spoken.finish_reason()
        assert found.usage == Usage(prompt_tokens=1, completion_tokens=9)


@given(st.data())
def test_lines_may_be_cut_anywhere(data: st.DataObject) -> None:
    lines = b'{"a": 1}\r\n\n{"b": 2}\n{"c": 3}\n'
    cuts = sorted(data.draw(st.sets(st.integers(0, len(lines)))))
    reader = LinesReader()
    parts = [lines[a:b] for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]
    found = [one for part in parts for one in reader.feed(part)]
    assert found == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']


@each_case("sent", [b"x" * 60, b"x" * 60 + b"\n"])
def test_a_line_is_bounded(sent: bytes) -> None:
    with pytest.raises(FrameError, match="more than 40 bytes"):
        LinesReader(max_bytes=40).feed(sent)


@each_case(
    ("last", "reason"),
    [({"done_reason": "length"}, "length"), ({"done_reason": "stop"}, "stop"), ({}, "stop")],
)
def test_why_it_ended(last: dict[str, Any], reason: str) -> None:
    assert content_of(read(line("a"), line(done=True, **last))).reason == reason


def test_calls_have_ids_and_end_the_answer() -> None:
    function = {"name": "f", "arguments": {"a": 1}}
    calls = [{"function": function}, {"id": "c", "function": {"name": "g"}}]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    found = content_of(read({"message": message}, DONE))
    assert [(name, arguments) for _, name, arguments in found.calls] == [
        ("f", '{"a":1}'),
        ("g", "{}"),
    ]
    assert len({call_id for call_id, _, _ in found.calls}) == 2
    assert found.reason == "tool_calls"


def test_tokens_that_are_not_counted_are_estimated() -> None:
    *_, last = read(line("Hello"), line(done=True, eval_count=2))
    assert isinstance(last, Finished)
    assert last.usage == Usage(prompt_tokens=3, completion_tokens=2)


def test_log_probabilities_are_kept_where_they_are_asked_for() -> None:
    one = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    found = read(line("a", logprobs=[one]), DONE, wants_logprobs=True)
    (delta,) = [event for event in found if isinstance(event, Delta)]
    assert delta.logprobs is not None
    assert (delta.logprobs[0].logprob, delta.logprobs[0].token_bytes) == (-0.5, b"a")


@each_case(
    "lines",
    [
        [],
        [line("a")],
        [line(done=True, done_reason="load")],
        [{"model": "m"}],
        [{"message": {"content": 7}}],
        [line("a"), {"message": {"tool_calls": [{"function": {"arguments": {}}}]}}],
        [DONE, line("a")],
        [[1]],
    ],
)
def test_what_is_no_answer_is_a_fault(lines: list[Any]) -> None:
    with pytest.raises(UpstreamFaultError):
        read(*lines)


def test_an_error_object_is_not_an_answer() -> None:
    with pytest.raises(UpstreamErrorObject):
        read(line("a"), {"error": "boom"})


@given(st.lists(JSON, max_size=4))
def test_any_json_is_events_that_may_be_or_a_fault(lines: Iterable[Any]) -> None:
    check = AnswerCheck(REQUEST, Usage(prompt_tokens=1_000, completion_tokens=10**9))
    try:
        for event in read(*lines, DONE):
            check.check(event)
    except (UpstreamFaultError, UpstreamErrorObject):
        return
