"""Requests as the body of Ollama's chat and generate, and its lines as our events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.request.answer_check import AnswerCheck
from inference.protocol.events import Accepted, Delta, Event, Finished, Usage
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TextInput,
    ToolCall,
)
from inference.protocol.sampling import DEFAULTS_OF_MODELS, SamplingOptions
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.common.parts import ImageFile
from inference.wire.errors import ApiError, UnsupportedParameterError
from inference.wire.ollama import chat as ollama_chat
from inference.wire.ollama.answers import OllamaBodyEncoder, OllamaStreamEncoder, Shape
from inference.wire.openai.chat.request import parse
from inference.wire.upstream.answer_events import (
    FrameError,
    LinesReader,
    UpstreamErrorObject,
    UpstreamFaultError,
)
from inference.wire.upstream.ollama import OllamaEvents, body_of, path_of
from inference.wire.upstream.sending import Sending
from tests.cases import each_case
from tests.inference.wire.golden import Case, cases
from tests.inference.wire.test_encoders import USAGE, R, Spoken, events_of_choice, randoms
from tests.inference.wire.upstream.reading import content_of, events_read
from tests.inference.wire.upstream.test_messages_events import SPOKEN
from tests.inference.wire.upstream.test_messages_request import PNG, TOOL, TURNS, meaning


def sent(request: GenerationRequest, **limits: int) -> dict[str, Any]:
    chat = request.input
    images = chat.images if isinstance(chat, ChatInput) else []
    files = {image.digest: image for image in images if isinstance(image, ImageFile)}
    found: dict[str, Any] = json.loads(body_of(request, Sending(model="m", images=files, **limits)))
    return found


def openai_sent(**fields: Any) -> dict[str, Any]:
    body = {"model": "far", "messages": TURNS, **fields}
    return sent(parse(json.dumps(body).encode()).generation)


@each_case("case", cases("ollama_chat"), ids=str)
def test_what_came_in_that_dialect_is_sent_as_it_came(case: Case) -> None:
    given = case.given("request")
    try:
        parsed = ollama_chat.parse(given)
    except ApiError:
        return
    asked = parsed.generation
    if not isinstance(asked, GenerationRequest):
        return  # it only loads a model
    limits = {} if asked.sampling.max_tokens is None else {"max_tokens": asked.sampling.max_tokens}
    body = json.dumps(sent(asked, **limits)).encode()
    assert meaning(ollama_chat.parse(body).generation) == meaning(asked)


def test_turns_of_other_dialects() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":"b"}'}}
    body = openai_sent(
        tools=[{"type": "function", "function": {**TOOL, "strict": True}}],
        messages=[
            {"role": "system", "content": "be short"},
            {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ],
    )
    assert body["messages"] == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "look", "images": [PNG]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"a": "b"}}}],
        },
        {"role": "tool", "content": "rain", "tool_name": "f", "tool_call_id": "c1"},
    ]
    assert body["tools"] == [{"type": "function", "function": TOOL}]
    ollama._types.ChatRequest.model_validate(body)


def test_prompts_are_never_cut_and_get_the_catalogues_context() -> None:
    request = parse(json.dumps({"model": "far", "messages": TURNS}).encode()).generation
    body = sent(request, max_tokens=9, context_tokens=32_768)
    assert (body["truncate"], body["shift"]) == (False, False)
    assert body["options"] == {"num_predict": 9, "num_ctx": 32_768}


def test_a_prompt_without_turns_is_generated() -> None:
    request = GenerationRequest(model="far", input=TextInput(texts=["Once"]), stop=["."])
    body = sent(request)
    assert path_of(request) == "/api/generate"
    assert (body["prompt"], body["raw"], body["options"]) == ("Once", True, {"stop": ["."]})
    with pytest.raises(UnsupportedParameterError):
        sent(GenerationRequest(model="far", input=TextInput(texts=["a", "b"])))


@each_case(
    ("fields", "expected"),
    [
        ({"temperature": 0.25, "seed": 3}, {"options": {"temperature": 0.25, "seed": 3}}),
        (
            {"repetition_penalty": 1.5},
            {"options": {"repeat_penalty": 1.5, "repeat_last_n": -1}},
        ),
        ({"min_p": 0.1, "top_k": 7}, {"options": {"min_p": 0.1, "top_k": 7}}),
        ({"stop": ["x"]}, {"options": {"stop": ["x"]}}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"reasoning_effort": "high"}, {"think": "high"}),
        ({"reasoning_effort": "none"}, {"think": False}),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"think": True}),
        ({"response_format": {"type": "json_object"}}, {"format": "json"}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}},
                }
            },
            {"format": {"type": "object"}},
        ),
    ],
)
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    plain, body = openai_sent(), openai_sent(**fields)
    assert {name: body[name] for name in body if name not in plain} == expected


def test_a_budget_is_thinking_without_a_bound() -> None:
    body = {"model": "far", "max_tokens": 5_000, "messages": TURNS}
    budget = {"thinking": {"type": "enabled", "budget_tokens": 2_000}}
    asked = anthropic_messages.parse(json.dumps(body | budget).encode()).generation
    assert sent(asked)["think"] is True
    effort = {"output_config": {"effort": "high"}}
    asked = anthropic_messages.parse(json.dumps(body | effort).encode()).generation
    assert "think" not in sent(asked)


TOOLS = {"tools": [{"type": "function", "function": TOOL}]}


@each_case(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({**TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({**TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
def test_what_has_no_word_there_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameterError) as caught:
        openai_sent(**fields)
    assert caught.value.param == param


def test_tools_that_may_not_be_called_are_not_sent() -> None:
    assert "tools" not in openai_sent(**TOOLS, tool_choice="none")


def test_every_sampling_option_is_translated_or_refused() -> None:
    values: dict[str, Any] = {
        "repetition_penalty": 1.5,
        "logit_bias": {1: 1.0},
        "stop_token_ids": [1],
        "ignore_eos": True,
    }
    chat = ChatInput(messages=[ChatMessage(role="user", content="hi")])
    plain = sent(GenerationRequest(model="far", input=chat))
    for name in SamplingOptions.__struct_fields__:
        if name == "max_tokens":
            continue  # what bounds an answer is an argument
        options = SamplingOptions(**{name: values.get(name, 1)})
        try:
            body = sent(GenerationRequest(model="far", input=chat, sampling=options))
        except UnsupportedParameterError as error:
            assert error.param == name
            assert name not in DEFAULTS_OF_MODELS or name == "repetition_window"
        else:
            assert body != plain, name


@each_case(
    ("arguments", "expected"),
    [("{", {"invalid_arguments": "{"}), (" ", {}), (f'{{"n":{2**70}}}', {"n": 2**70})],
)
def test_a_call_of_any_arguments_is_sent_as_an_object(
    arguments: str, expected: dict[str, Any]
) -> None:
    turn = ChatMessage(
        role="assistant", tool_calls=[ToolCall(id="c", name="f", arguments=arguments)]
    )
    request = GenerationRequest(model="far", input=ChatInput(messages=[turn]))
    (message,) = sent(request)["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == expected


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
