"""An upstream's answer in each dialect as events: cut anywhere, and wrong in every way."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.request.answer_check import AnswerCheck
from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.protocol.generation import ChatInput, ChatMessage, GenerationRequest
from inference.wire.anthropic.answers import MessageBodyEncoder, MessageStreamEncoder, Style
from inference.wire.ollama.answers import OllamaBodyEncoder, OllamaStreamEncoder, Shape
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    FrameError,
    LinesReader,
    SseReader,
    UpstreamErrorObject,
    UpstreamFaultError,
)
from inference.wire.upstream.chat import ChatEvents
from inference.wire.upstream.messages_events import MessagesEvents
from inference.wire.upstream.ollama import OllamaEvents
from tests.cases import each_case
from tests.inference.wire import answers
from tests.inference.wire.answers import USAGE, Part, R, content_of, events_read, randoms
from tests.servers.fake_upstream import block, chunk, message_end, message_start, usage

REQUEST = GenerationRequest(model="m", input=ChatInput(messages=[ChatMessage(role="user")]))


def read(reader_of: Any, *frames: Any, **limits: Any) -> list[Event]:
    return events_read(reader_of, [json.dumps(one).encode() for one in frames], **limits)


def call(index: int | None, name: str | None, arguments: str | None, **more: Any) -> Any:
    """A part of a call in OpenAI's chat."""
    function = {"name": name, "arguments": arguments}
    one = {"function": function, **more} | ({} if index is None else {"index": index})
    return chunk({"tool_calls": [one]})


def used(index: int, name: str | None, *pieces: str, call_id: str = "toolu_1") -> list[Any]:
    """A call in Anthropic's messages."""
    opened = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block(index, opened, *({"type": "input_json_delta", "partial_json": p} for p in pieces))


def line(content: str = "", **fields: Any) -> dict[str, Any]:
    """Of Ollama's chat."""
    return {"model": "m", "message": {"role": "assistant", "content": content}, **fields}


STOP = {"type": "message_stop"}
TEXT = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "a"})
DONE = line(done=True, done_reason="stop", prompt_eval_count=5, eval_count=2)


SSE = b": c\r\n\r\ndata: one\r\n\r\nevent: x\ndata: two\ndata:2\n\ndata:three\n\n"


@each_case(
    ("make_reader", "sent", "frames"),
    [
        (SseReader, SSE, [b"one", b"two\n2", b"three"]),
        (LinesReader, b"{1}\r\n\n{2}\n{3}\n", [b"{1}", b"{2}", b"{3}"]),
    ],
)
def test_bytes_may_be_cut_anywhere(make_reader: Any, sent: bytes, frames: list[bytes]) -> None:
    @given(st.sets(st.integers(0, len(sent))).map(sorted))
    def check(cuts: list[int]) -> None:
        reader = make_reader()
        parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
        assert [one for part in parts for one in reader.feed(part)] == frames

    check()


@each_case(
    ("make_reader", "sent"),
    [
        *[(SseReader, sent) for sent in (b"data: " + b"x" * 50, b"data: xxxxxxxxxx\n" * 10)],
        *[(reader, b"x" * 60) for reader in (SseReader, LinesReader)],
        (LinesReader, b"x" * 60 + b"\n"),
    ],
)
def test_a_frame_without_an_end_is_bounded(make_reader: Any, sent: bytes) -> None:
    for piece_bytes in (1, len(sent)):
        reader = make_reader(max_bytes=40)
        with pytest.raises(FrameError, match="more than 40 bytes"):
            for start in range(0, len(sent), piece_bytes):
                reader.feed(sent[start : start + piece_bytes])


SHOWN = Style(thinking="shown")


def ollamas(*, is_chat: bool) -> Any:
    shape = Shape(model="m", is_chat=is_chat), lambda: 1.0
    return OllamaEvents, LinesReader, OllamaStreamEncoder, OllamaBodyEncoder, shape


@pytest.mark.parametrize(
    ("reader_of", "frames", "stream", "body", "asked"),
    [
        (MessagesEvents, SseReader, MessageStreamEncoder, MessageBodyEncoder, ("m", SHOWN, R)),
        ollamas(is_chat=True),
        ollamas(is_chat=False),
    ],
    ids=["anthropic", "ollama_chat", "ollama_generate"],
)
@given(answer=answers.spoken(), random=randoms)
def test_what_is_written_in_a_dialect_is_read_again(
    reader_of: Any,
    frames: Any,
    stream: Any,
    body: Any,
    asked: Any,
    answer: list[Part],
    random: Random,
) -> None:
    if reader_of is OllamaEvents and not asked[0].is_chat:
        answer = [part for part in answer if part[0] != "call"]
    events = answers.events_of(answer, random)
    streamed, whole = (answers.folded(make(*asked), events) for make in (stream, body))
    for sent in (frames().feed(streamed), [whole]):
        found = content_of(events_read(reader_of, sent))
        assert found.reasoning == "".join(answers.said(answer, "thought"))
        assert found.text == "".join(answers.said(answer, "text"))
        calls = [(name, json.loads(arguments)) for _, name, arguments in found.calls]
        assert calls == [("f", json.loads(arguments)) for arguments in answers.said(answer, "call")]
        assert found.reason == answers.ending(answer)
        counted = Usage(prompt_tokens=9, completion_tokens=5)
        assert found.usage == (USAGE if reader_of is MessagesEvents else counted)


def test_a_call_is_whole_or_text() -> None:
    broken = content_of(read(ChatEvents, call(0, "f", '{"a": '), chunk(finish="length")))
    assert (broken.calls, broken.text) == ([], '{"name": "f", "arguments": {"a": }')
    both = [call(0, "f", "["), call(1, "g", "{}"), chunk(finish="tool_calls")]
    broken = content_of(read(ChatEvents, *both))
    assert (broken.calls, broken.reason) == ([], "stop"), "what follows a broken one is text too"
    begun = [call(0, "f", "{", id="a"), call(1, "g", None, id="b"), call(0, None, "}")]
    mixed = read(ChatEvents, *begun, chunk(finish="stop"), usage(3, 4))
    found = content_of(mixed)
    assert found.calls == [["a", "f", "{}"], ["b", "g", "{}"]]
    assert found.usage == Usage(prompt_tokens=3, completion_tokens=4)
    assert [one.call_index for one in mixed if isinstance(one, ToolCallStarted)] == [0, 1]
    blocks = [*used(0, "f", '{"a":', " 1}"), *used(1, "g", call_id="t2"), *used(2, "h", '{"b":')]
    end = [message_end("max_tokens"), STOP]
    found = content_of(read(MessagesEvents, message_start(), *blocks, *end))
    assert found.calls == [["toolu_1", "f", '{"a": 1}'], ["t2", "g", "{}"]]
    assert (found.text, found.reason) == ('{"name": "h", "arguments": {"b":}', "length")


def test_a_call_of_a_message_is_sent_when_its_own_block_ends() -> None:
    """An end of another block sends no part of it, a block without an index is the first, and what
    comes late for a call that was sent is skipped."""
    opened, first, last, closed = used(0, "f", '{"a":', " 1}")
    for one in (opened, closed):
        del one["index"]
    other = block(1, {"type": "text", "text": "b"})
    late = block(2, {"type": "text", "text": "c"})
    counted = {"type": "message_delta", "usage": {"output_tokens": 7}}
    frames = [opened, first, *other, last, closed, last, *late, counted, message_end("tool_use")]
    events = read(MessagesEvents, message_start(input_tokens=3), *frames, STOP)
    kinds = [Accepted, Delta, ToolCallStarted, ToolCallDelta, Delta, ChoiceFinished, Finished]
    assert [type(one) for one in events] == kinds
    found = content_of(events)
    assert found.calls == [["toolu_1", "f", '{"a": 1}']] and found.reason == "tool_calls"
    limits = dict.fromkeys(("prompt_tokens", "max_prompt_tokens", "max_output_tokens"), 99)
    reader = MessagesEvents(AnswerEvents("r", num_choices=1, **limits))
    sent = [message_start(input_tokens=3), *frames, STOP]
    *_, ended = [reader.read(json.dumps(one).encode()) for one in sent]
    assert ended == [Finished(request_id="r", usage=found.usage)]


def test_a_call_without_an_id_or_index_gets_one() -> None:
    functions = [
        {"function": {"name": "f", "arguments": {}}},
        {"id": "c", "function": {"name": "g"}},
    ]
    message = {"role": "assistant", "content": "", "tool_calls": functions}
    for events in (
        read(ChatEvents, call(None, "f", "{}"), call(None, "g", "{}"), chunk(finish="tool_calls")),
        read(OllamaEvents, {"message": message}, DONE),
    ):
        found = content_of(events)
        assert [one[1:] for one in found.calls] == [["f", "{}"], ["g", "{}"]]
        assert len({one[0] for one in found.calls}) == 2
        assert found.reason == "tool_calls"


def test_usage_is_of_the_prompt_with_what_the_cache_gave_and_took() -> None:
    tokens = {"input_tokens": 5, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 4}
    end = message_end("end_turn", output_tokens=9, output_tokens_details={"thinking_tokens": 2})
    events = read(MessagesEvents, message_start(**tokens), *TEXT, end, STOP)
    assert events[0] == Accepted(request_id="r", prompt_tokens=39)
    assert content_of(events).usage == Usage(
        prompt_tokens=39, completion_tokens=9, cached_tokens=30, reasoning_tokens=2
    )
    details = {"prompt_tokens_details": {"cached_tokens": 9}, "completion_tokens_details": {}}
    details["completion_tokens_details"] = {"reasoning_tokens": 9}
    counted = usage(3, 4) | {"usage": {"prompt_tokens": 3, "completion_tokens": 4, **details}}
    found = content_of(read(ChatEvents, chunk(finish="stop"), counted))
    bounded = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=3, reasoning_tokens=4)
    assert found.usage == bounded


def test_why_it_ended_and_what_is_unknown_is_skipped() -> None:
    for named, reason in (
        *(("end_turn", "stop"), ("max_tokens", "length"), ("stop_sequence", "stop")),
        *(("model_context_window_exceeded", "context"), ("tool_use", "stop")),
    ):
        end = message_end(named, stop_sequence="END" if named == "stop_sequence" else None)
        found = content_of(read(MessagesEvents, message_start(), end, STOP))
        assert (found.reason, found.stop_sequence) == (reason, end["delta"]["stop_sequence"])
    for last, reason in (({"done_reason": "length"}, "length"), ({}, "stop")):
        assert content_of(read(OllamaEvents, line("a"), line(done=True, **last))).reason == reason
    events = read(
        MessagesEvents,
        message_start(),
        {"type": "ping"},
        *block(0, {"type": "redacted_thinking", "data": "x"}),
        *block(1, {"type": "text", "text": "a", "citations": []}, {"type": "citations_delta"}),
        *block(2, {"type": "server_thing"}, {"type": "new_delta", "partial_json": "x"}),
        {"type": "news"},
        message_end("end_turn"),
        STOP,
    )
    found = content_of(events)
    assert (found.text, found.calls) == ("a", [])


NO_ANSWERS: dict[Any, list[list[Any]]] = {
    ChatEvents: [
        *([chunk({"content": "a"})], [], [chunk(finish="dance")], [[1]], [{"id": "x"}]),
        *([chunk({"content": "a"}, index=at)] for at in (1, -1)),
        *([chunk(finish="stop"), chunk({name: "a"})] for name in ("content", "reasoning")),
        *([call(0, None, "{}")], [{"choices": "none"}], [chunk({"content": 7})]),
    ],
    MessagesEvents: [
        *([], TEXT, [message_start(), *TEXT], [message_start(), STOP], [[1]]),
        *([message_start(), message_end("dance")], [{"type": "message_start", "message": 7}]),
        *([message_start(), message_end("end_turn"), *TEXT], [message_start(), *used(0, None)]),
        [message_start(), *used(0, "f")[:1], *used(0, "f")],
    ],
    OllamaEvents: [
        *([], [line("a")], [line(done=True, done_reason="load")], [{"model": "m"}], [[1]]),
        *([{"message": {"content": 7}}], [DONE, line("a")]),
        [line("a"), {"message": {"tool_calls": [{"function": {"arguments": {}}}]}}],
    ],
}


@each_case(
    ("reader_of", "frames"),
    [(reader_of, frames) for reader_of, each in NO_ANSWERS.items() for frames in each],
)
def test_what_is_no_answer_is_a_fault(reader_of: Any, frames: list[Any]) -> None:
    with pytest.raises(UpstreamFaultError):
        read(reader_of, *frames)
    begin = [message_start()] if reader_of is MessagesEvents else []
    for error in ({"error": {"message": "no"}}, {"error": "boom"}):
        with pytest.raises(UpstreamErrorObject):
            read(reader_of, *begin, {"type": "error"} | error)


NAMES = (
    *("choices", "delta", "index", "usage", "content", "tool_calls", "type", "message", "text"),
    *("content_block", "error", "thinking", "function", "name", "arguments", "done"),
)
KINDS = (
    *("message", "message_start", "content_block_start", "content_block_delta", "text_delta"),
    *("tool_use", "x"),
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("reader_of", "begin", "end"),
    [
        (ChatEvents, [], [chunk(finish="stop")]),
        (MessagesEvents, [message_start()], [message_end("end_turn"), STOP]),
        (OllamaEvents, [], [DONE]),
    ],
)
@given(frames=st.lists(ANY_JSON, max_size=4))
def test_any_json_is_events_that_may_be_or_a_fault(
    reader_of: Any, begin: list[Any], end: list[Any], frames: list[Any]
) -> None:
    check = AnswerCheck(REQUEST, Usage(prompt_tokens=1_000, completion_tokens=10**9))
    try:
        for event in read(reader_of, *begin, *frames, *end):
            check.check(event)
    except (UpstreamFaultError, UpstreamErrorObject):
        return


@given(st.lists(st.text(max_size=9), max_size=6), st.integers(1, 20))
def test_an_estimate_is_within_what_may_be(pieces: list[str], most: int) -> None:
    chunks = [chunk({"content": text}) for text in pieces]
    found = read(ChatEvents, *chunks, chunk(finish="stop"), max_output_tokens=most)
    last = found[-1]
    assert isinstance(last, Finished)
    num_bytes = sum(len(text.encode("utf-8", "replace")) for text in pieces)
    assert last.usage.completion_tokens == min(most, -(-num_bytes // 4))
    assert sum(getattr(event, "num_tokens", 0) for event in found) == last.usage.completion_tokens


def test_tokens_that_are_not_counted_or_cannot_be_are_estimated() -> None:
    for start in ({"output_tokens": 1}, {"input_tokens": -1}, {"input_tokens": 10**9}):
        events = read(MessagesEvents, message_start(**start), message_end("end_turn"), STOP)
        assert events[0] == Accepted(request_id="r", prompt_tokens=3)
    end = message_end("end_turn")
    del end["usage"]
    found = read(MessagesEvents, message_start(), *TEXT, end, STOP)
    assert content_of(found).usage == Usage(prompt_tokens=7, completion_tokens=1)
    assert [event.num_tokens for event in found if isinstance(event, Delta)] == [1]
    found = read(OllamaEvents, line("Hello"), line(done=True, eval_count=2))
    assert content_of(found).usage == Usage(prompt_tokens=3, completion_tokens=2)
    odd = {"choices": [], "usage": 7}
    found = read(ChatEvents, chunk({"content": "a"}), chunk(finish="stop"), odd)
    assert content_of(found).usage == Usage(prompt_tokens=3, completion_tokens=1)


ENTRY = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def with_logprob(**changes: Any) -> Any:
    return chunk({"content": "a"}, logprobs={"content": [ENTRY | changes]})


@each_case(
    ("reader_of", "frames"),
    [
        (ChatEvents, [with_logprob(), chunk(finish="stop")]),
        (ChatEvents, [with_logprob(bytes=None), chunk(finish="stop")]),
        (OllamaEvents, [line("a", logprobs=[ENTRY]), DONE]),
    ],
)
def test_log_probabilities_that_are_asked_for(reader_of: Any, frames: list[Any]) -> None:
    found = read(partial(reader_of, wants_logprobs=True), *frames)
    (delta,) = [event for event in found if isinstance(event, Delta)]
    unasked = [event for event in read(reader_of, *frames) if isinstance(event, Delta)]
    assert [event.logprobs for event in unasked] == [None]
    assert delta.logprobs is not None
    assert (delta.logprobs[0].logprob, delta.logprobs[0].token_bytes) == (-0.5, b"a")


@each_case("wrong", [{"logprob": 2.0}, {"bytes": [256]}, {"token": 7}])
def test_other_log_probabilities_are_a_fault(wrong: Any) -> None:
    for frame in (with_logprob(**wrong), chunk({"content": "a"}, logprobs=[1])):
        with pytest.raises(UpstreamFaultError):
            read(partial(ChatEvents, wants_logprobs=True), frame)
