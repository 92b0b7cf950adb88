"""An upstream's message of Anthropic's dialect as events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.request.answer_check import AnswerCheck
from inference.protocol.events import Accepted, Delta, Event, Finished, ToolCallStarted, Usage
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from inference.wire.anthropic.encoders import MessageBodyEncoder, MessageStreamEncoder, Style
from inference.wire.upstream.answer_events import SseReader, UpstreamErrorObject, UpstreamFaultError
from inference.wire.upstream.messages_events import MessagesEvents
from tests.cases import each_case
from tests.inference.wire.test_encoders import USAGE, R, Spoken, events_of_choice, randoms, texts
from tests.inference.wire.upstream.reading import content_of, events_read
from tests.servers.fake_upstream import block, message_end, message_start

REQUEST = GenerationRequest(model="m", input=ChatInput(messages=[ChatMessage(role="user")]))
SPOKEN = st.builds(
    Spoken,
    reasoning=st.none() | texts,
    text=texts,
    calls=st.lists(
        st.tuples(
            st.sampled_from(["f", "g"]),
            st.dictionaries(texts, texts, max_size=2).map(json.dumps),
        ),
        max_size=2,
    ),
)
WORDS = ["type", "message", "usage", "index", "delta", "content_block", "text", "content", "error"]
KINDS = ["message", "message_start", "content_block_start", "content_block_delta", "text_delta"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([*KINDS, "tool_use", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner),
)


def read(*events: Any) -> list[Event]:
    return events_read(MessagesEvents, [json.dumps(event).encode() for event in events])


def call(index: int, name: str | None, *pieces: str, call_id: str = "toolu_1") -> list[Any]:
    opened = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block(index, opened, *({"type": "input_json_delta", "partial_json": p} for p in pieces))


@given(SPOKEN, randoms)
def test_what_is_written_in_that_dialect_is_read_again(spoken: Spoken, random: Random) -> None:
    events: list[Event] = [
        Accepted(request_id=R, prompt_tokens=1),
        *events_of_choice(0, spoken, random),
        Finished(request_id=R, usage=USAGE),
    ]
    style = Style(thinking="shown")
    stream, whole = MessageStreamEncoder("m", style, R), MessageBodyEncoder("m", style, R)
    sent = b"".join(stream.encode(event) for event in events)
    body = b"".join(whole.encode(event) for event in events)
    for found in (
        content_of(events_read(MessagesEvents, SseReader().feed(sent))),
        content_of(events_read(MessagesEvents, [body])),
    ):
        assert (found.reasoning, found.text) == (spoken.reasoning or "", spoken.text)
        calls = [(name, json.loads(arguments)) for _, name, arguments in found.calls]
        assert calls == [(name, json.loads(arguments)) for name, arguments in spoken.calls]
        assert (found.reason, found.usage) == (spoken.finish_reason(), USAGE)


def test_usage_is_of_the_prompt_with_what_the_cache_gave_and_took() -> None:
    events = read(
        message_start(input_tokens=5, cache_read_input_tokens=30, cache_creation_input_tokens=4),
        *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello"}),
        message_end("end_turn", output_tokens=9, output_tokens_details={"thinking_tokens": 2}),
        {"type": "message_stop"},
    )
    assert events[0] == Accepted(request_id="r", prompt_tokens=39)
    assert content_of(events).usage == Usage(
        prompt_tokens=39, completion_tokens=9, cached_tokens=30, reasoning_tokens=2
    )


@each_case("start", [{"output_tokens": 1}, {"input_tokens": -1}, {"input_tokens": 10**9}])
def test_a_prompt_that_cannot_be_is_the_estimate(start: dict[str, Any]) -> None:
    events = read(message_start(**start), message_end("end_turn"), {"type": "message_stop"})
    assert events[0] == Accepted(request_id="r", prompt_tokens=3)


@each_case(
    ("stop_reason", "reason"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("stop_sequence", "stop"),
        ("refusal", "stop"),
        ("model_context_window_exceeded", "context"),
        ("tool_use", "stop"),
    ],
)
def test_why_it_ended(stop_reason: str, reason: str) -> None:
    end = message_end(stop_reason, stop_sequence="END" if stop_reason == "stop_sequence" else None)
    found = content_of(read(message_start(), end, {"type": "message_stop"}))
    assert (found.reason, found.stop_sequence) == (reason, end["delta"]["stop_sequence"])


def test_calls_are_sent_when_they_are_whole_and_broken_ones_are_text() -> None:
    events = read(
        message_start(),
        *call(0, "f", '{"a":', " 1}"),
        *call(1, "g", call_id="toolu_2"),
        *call(2, "h", '{"b":'),
        message_end("max_tokens"),
        {"type": "message_stop"},
    )
    found = content_of(events)
    assert found.calls == [["toolu_1", "f", '{"a": 1}'], ["toolu_2", "g", "{}"]]
    assert found.text == '{"name": "h", "arguments": {"b":}'
    assert found.reason == "length"
    indices = [event.call_index for event in events if isinstance(event, ToolCallStarted)]
    assert indices == [0, 1]


def test_what_is_unknown_is_skipped() -> None:
    found = content_of(
        read(
            message_start(),
            {"type": "ping"},
            *block(0, {"type": "redacted_thinking", "data": "x"}),
            *block(1, {"type": "text", "text": "a", "citations": []}, {"type": "citations_delta"}),
            *block(2, {"type": "server_thing"}, {"type": "new_delta", "partial_json": "x"}),
            {"type": "news"},
            message_end("end_turn"),
            {"type": "message_stop"},
        )
    )
    assert (found.text, found.calls) == ("a", [])


TEXT = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "a"})


@each_case(
    "events",
    [
        [],
        TEXT,
        [message_start(), *TEXT],
        [message_start(), {"type": "message_stop"}],
        [message_start(), message_end("dance")],
        [message_start(), message_end("end_turn"), *TEXT],
        [message_start(), *call(0, None)],
        [message_start(), *call(0, "f")[:1], *call(0, "f")],
        [{"type": "message_start", "message": 7}],
        [[1]],
    ],
)
def test_what_is_no_answer_is_a_fault(events: list[Any]) -> None:
    with pytest.raises(UpstreamFaultError):
        read(*events)


@each_case("error", [{"type": "error", "error": {"type": "x"}}, {"error": "no"}])
def test_an_error_object_is_not_an_answer(error: Any) -> None:
    with pytest.raises(UpstreamErrorObject):
        read(message_start(), error)


@given(st.lists(JSON, max_size=4))
def test_any_json_is_events_that_may_be_or_a_fault(events: Iterable[Any]) -> None:
    check = AnswerCheck(REQUEST, Usage(prompt_tokens=1_000, completion_tokens=10**9))
    end = [message_end("end_turn"), {"type": "message_stop"}]
    try:
        for event in read(message_start(), *events, *end):
            check.check(event)
    except (UpstreamFaultError, UpstreamErrorObject):
        return


def test_tokens_that_are_not_counted_are_estimated() -> None:
    start, end = message_start(), message_end("end_turn")
    del end["usage"]
    *_, last = found = read(start, *TEXT, end, {"type": "message_stop"})
    assert isinstance(last, Finished)
    assert last.usage == Usage(prompt_tokens=7, completion_tokens=1)
    assert [event.num_tokens for event in found if isinstance(event, Delta)] == [1]
