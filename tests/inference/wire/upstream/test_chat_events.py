"""An upstream's stream as events: cut anywhere, and wrong in every way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.request.answer_check import AnswerCheck
from inference.protocol.events import Delta, Event, Finished, ToolCallDelta, ToolCallStarted, Usage
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    FrameError,
    SseReader,
    UpstreamErrorObject,
    UpstreamFaultError,
)
from inference.wire.upstream.chat_events import ChatEvents
from tests.cases import each_case
from tests.servers.fake_upstream import chunk, usage

REQUEST = GenerationRequest(model="m", input=ChatInput(messages=[ChatMessage(role="user")]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "index", "usage", "content", "tool_calls"]), inner
        )
    ),
)


def read(*chunks: Any, max_output_tokens: int = 100, **options: Any) -> list[Event]:
    answer = AnswerEvents(
        "r",
        num_choices=1,
        prompt_tokens=3,
        max_prompt_tokens=50,
        max_output_tokens=max_output_tokens,
    )
    reader = ChatEvents(answer, **options)
    found = [event for one in chunks for event in reader.read(json.dumps(one).encode())]
    answer.end()
    return found + answer.take()


def call(index: int | None, name: str | None, arguments: str | None, **more: Any) -> Any:
    function = {"name": name, "arguments": arguments}
    one = {"function": function, **more} | ({} if index is None else {"index": index})
    return chunk({"tool_calls": [one]})


@given(st.data())
def test_bytes_may_be_cut_anywhere(data: st.DataObject) -> None:
    frames = b": c\r\n\r\ndata: one\r\n\r\nevent: x\ndata: two\ndata:2\n\ndata:three\n\n"
    cuts = sorted(data.draw(st.sets(st.integers(0, len(frames)))))
    reader = SseReader()
    parts = [frames[a:b] for a, b in zip([0, *cuts], [*cuts, len(frames)], strict=True)]
    found = [one for part in parts for one in reader.feed(part)]
    assert found == [b"one", b"two\n2", b"three"]


def test_a_frame_without_an_end_is_bounded() -> None:
    for frame in (b"data: " + b"x" * 50, b"data: xxxxxxxxxx\n" * 10, b"x" * 60):
        reader = SseReader(max_bytes=40)
        with pytest.raises(FrameError, match="more than 40 bytes"):
            for start in range(len(frame)):
                reader.feed(frame[start : start + 1])


def test_a_call_is_whole_or_text() -> None:
    broken = call(0, "f", '{"a": ')
    found = read(broken, chunk(finish="length"))
    assert not any(isinstance(event, ToolCallStarted) for event in found)
    text = "".join(event.text for event in found if isinstance(event, Delta))
    assert text == '{"name": "f", "arguments": {"a": }'
    mixed = read(
        call(0, "f", "{", id="a"),
        call(1, "g", None, id="b"),
        call(0, None, "}"),
        chunk(finish="stop"),
        usage(3, 4),
    )
    started = [event for event in mixed if isinstance(event, ToolCallStarted)]
    assert [(one.call_id, one.name, one.call_index) for one in started] == [
        ("a", "f", 0),
        ("b", "g", 1),
    ]
    assert [one.arguments for one in mixed if isinstance(one, ToolCallDelta)] == ["{}", "{}"]
    last = mixed[-1]
    assert isinstance(last, Finished)
    assert last.usage == Usage(prompt_tokens=3, completion_tokens=4)


def test_a_call_without_an_id_or_index_gets_one() -> None:
    found = read(call(None, "f", "{}"), call(None, "g", "{}"), chunk(finish="tool_calls"))
    started = [event for event in found if isinstance(event, ToolCallStarted)]
    assert [one.name for one in started] == ["f", "g"]
    assert len({one.call_id for one in started}) == 2


@each_case(
    "chunks",
    [
        [chunk({"content": "a"})],
        [],
        [chunk(finish="dance")],
        [chunk({"content": "a"}, index=1)],
        [chunk({"content": "a"}, index=-1)],
        [chunk(finish="stop"), chunk({"content": "a"})],
        [call(0, None, "{}")],
        [{"choices": "none"}],
        [{"id": "x"}],
        [chunk({"content": 7})],
        [[1]],
    ],
)
def test_what_is_no_answer_is_a_fault(chunks: list[Any]) -> None:
    with pytest.raises(UpstreamFaultError):
        read(*chunks)


def test_an_error_object_is_not_an_answer() -> None:
    with pytest.raises(UpstreamErrorObject):
        read({"error": {"message": "no"}})


@given(st.lists(JSON, max_size=4))
def test_any_json_is_events_that_may_be_or_a_fault(chunks: list[Any]) -> None:
    check = AnswerCheck(REQUEST, Usage(prompt_tokens=10**9, completion_tokens=10**9))
    try:
        for event in read(*chunks, chunk(finish="stop")):
            check.check(event)
    except (UpstreamFaultError, UpstreamErrorObject):
        return


@given(st.lists(st.text(max_size=9), max_size=6), st.integers(1, 20))
def test_an_estimate_is_within_what_may_be(texts: list[str], most: int) -> None:
    chunks = [chunk({"content": text}) for text in texts]
    found = read(*chunks, chunk(finish="stop"), max_output_tokens=most)
    last = found[-1]
    assert isinstance(last, Finished)
    num_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
    assert last.usage.completion_tokens == min(most, -(-num_bytes // 4))
    assert sum(getattr(event, "num_tokens", 0) for event in found) == last.usage.completion_tokens


def test_log_probabilities_are_kept_where_they_are_asked_for() -> None:
    one = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    asked = chunk({"content": "a"}, logprobs={"content": [one]})
    found = read(asked, chunk(finish="stop"), wants_logprobs=True)
    (delta,) = [event for event in found if isinstance(event, Delta)]
    assert delta.logprobs is not None
    assert (delta.logprobs[0].logprob, delta.logprobs[0].token_bytes) == (-0.5, b"a")
    wrong = chunk({"content": "a"}, logprobs={"content": [{**one, "logprob": 2.0}]})
    with pytest.raises(UpstreamFaultError):
        read(wrong, wants_logprobs=True)
