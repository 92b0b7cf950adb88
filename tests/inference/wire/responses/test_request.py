"""The Responses dialect's requests: fields, schemas, thoughts, history, how their prompts are
counted, and what stays of a conversation that is made shorter."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseCompactionItem
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_compact_params import ResponseCompactParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsStreaming,
)

from inference.protocol.events import FinishReason, Usage
from inference.protocol.generation import ChatInput
from inference.wire.errors import ApiError
from inference.wire.responses import history
from inference.wire.responses import request as openai_responses
from inference.wire.responses.fields import carried, encrypted_content
from inference.wire.responses.history import (
    MAX_LAST_CHARS,
    MAX_SUMMARY_TOKENS,
    SUMMARISE,
    Summary,
    settled,
)
from inference.wire.responses.request import ResponsesRequest, error_message, parse_message
from inference.wire.responses.tools import is_strict
from tests.cases import each_case


def parse(**more: Any) -> openai_responses.ResponsesRequest:
    return openai_responses.parse(json.dumps({"model": "m", "input": "Hi", **more}).encode())


def test_every_field_of_the_sdk_is_declared() -> None:
    for params, fields in (
        (ResponseCreateParamsBase, openai_responses.FIELDS),
        (ResponseCreateParamsStreaming, openai_responses.FIELDS),
        (InputTokenCountParams, openai_responses.COUNT_FIELDS),
        (ResponseCompactParams, history.COMPACT_FIELDS),
    ):
        assert get_type_hints(params).keys() <= fields.keys()


@given(thought=st.text())
def test_a_thought_travels_whole_and_those_of_others_are_refused(thought: str) -> None:
    assert encrypted_content(carried(thought), "p") == thought
    for other in ("", "helexa1", "helexa1.!", "helexa1._w==", "gAAAA"):
        with pytest.raises(ApiError):
            encrypted_content(other, "p")


CLOSED = {"type": "object", "additionalProperties": False}


@each_case(
    ("schema", "strict"),
    [
        (CLOSED | {"properties": {}}, True),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, False),
        *[
            (CLOSED | {"properties": {name: schema}, "required": [name]}, strict)
            for name, schema, strict in (
                ("a", {"type": "string"}, True),
                ("a", {"type": "array", "items": {"type": "object"}}, False),
                ("type", {"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, True),
                ("a", {"type": "string", "format": "uri"}, False),
                ("a", True, False),
            )
        ],
        ({}, False),
        (CLOSED | {"properties": []}, False),
        (CLOSED | {"anyOf": {}}, False),
        (CLOSED | {"required": 3}, False),
        (CLOSED | {"required": [[]]}, False),
    ],
)
def test_strict_schemas(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict
    tool = {"type": "function", "name": "f", "parameters": schema}
    assert parse(tools=[tool]).generation.input.tools[0].strict is strict  # type: ignore[union-attr]
    chosen = parse(tools=[{**tool, "strict": not strict}]).generation.input
    assert chosen.tools[0].strict is not strict  # type: ignore[union-attr]


def test_history_comes_between_the_instructions_and_the_input() -> None:
    request = parse(
        instructions="Be brief.",
        input=[{"type": "item_reference", "id": "msg_0"}, {"role": "user", "content": "Again"}],
    )
    assert [reference.id for reference in request.references] == ["msg_0"]
    history = parse(instructions="Old.", input="Hi").items
    stored = parse(input=[{"id": "msg_0", "role": "assistant", "content": "Hello"}]).items
    continued = request.continued(history, {"msg_0": stored[0]})
    turns = continued.generation.input.messages  # type: ignore[union-attr]
    assert [(turn.role, turn.content) for turn in turns] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Again"),
    ]
    with pytest.raises(ApiError) as refused:
        request.continued(history, {})
    assert refused.value.param == "input[0]"


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def parse_count(**fields: Any) -> ResponsesRequest:
    return openai_responses.parse_count(orjson.dumps({"model": "m", "input": "Hi", **fields}))


def test_a_count_renders_what_the_response_would() -> None:
    body = {
        "model": "m",
        "input": [{"role": "user", "content": "Hi"}],
        "instructions": "Be brief.",
        "tools": [TOOL],
        "tool_choice": "required",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_object"}},
    }
    counted = openai_responses.count_of(parse_count(**body))
    assert counted.model == "m"
    assert counted.input == openai_responses.parse(orjson.dumps(body)).generation.input
    assert json.loads(openai_responses.count_body(7)) == {
        "object": "response.input_tokens",
        "input_tokens": 7,
    }
    for name in ("stream", "store", "temperature", "max_output_tokens"):
        with pytest.raises(ApiError, match=name):
            parse_count(**{name: 1})


def test_a_message_on_a_socket_is_a_request_without_fields_of_transport() -> None:
    create = {"type": "response.create", "model": "m", "input": "Hi"}
    read = parse_message(orjson.dumps({**create, "generate": False, "stream": True}))
    assert (read.generates, read.response.stream, read.response.background) == (False, True, False)
    assert parse_message(orjson.dumps(create)).generates
    for name, value in (("stream_options", {}), ("stream", False), ("background", True)):
        with pytest.raises(ApiError) as refused:
            parse_message(orjson.dumps({**create, name: value}))
        message = json.loads(error_message(refused.value))
        assert (message["status"], message["param"], message["sequence_number"]) == (400, name, 0)


CONVERSATION = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Weather in Paris?"},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Ask."}], "summary": []},
    {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "Sunny."},
    {"role": "assistant", "content": "It is sunny."},
    {"role": "user", "content": "And in Oslo?"},
]


def parse_compact(**fields: Any) -> openai_responses.ResponsesRequest:
    return history.parse_compact(json.dumps({"model": "m", **fields}).encode())


def compacted(given: Any, summary: str) -> Any:
    items, usage = parse_compact(input=given).items, Usage(prompt_tokens=9, completion_tokens=4)
    made = {"request_id": "r", "created_unix_s": 1}
    return json.loads(history.compacted_body(items, Summary(text=summary), usage, **made))


def test_the_summary_is_asked_for_last_bounded_and_sampled_low() -> None:
    for text_given, most in (("Hi", 256), ("x" * 2000, 500), ("x" * 10**6, MAX_SUMMARY_TOKENS)):
        asking = history.summary_request(parse_compact(input=text_given))
        assert isinstance(asking.input, ChatInput)
        assert asking.input.messages[-1].content == SUMMARISE
        assert (asking.input.thinking, asking.input.tools) == (False, [])
        assert asking.sampling.max_tokens == most
        assert asking.sampling.temperature is not None and asking.sampling.temperature <= 0.3
        assert asking.ends_at_context, "less is left for it: it may still be enough"


USAGE = Usage(prompt_tokens=9, completion_tokens=1024)


@each_case(
    ("text", "reason", "status", "begins"),
    [
        (" Sunny. \n", "stop", "complete", "Sunny."),
        ("It is sunny. It is al", "length", "cut_off", "It is sunny.\n\n["),
        ("It is sunny. It is al", "context", "cut_off", "It is sunny.\n\n["),
        (" \n", "stop", "missing", "["),
    ],
)
def test_a_summary_that_is_not_whole_ends_with_a_sentence_and_the_last_words(
    text: str, reason: FinishReason, status: str, begins: str
) -> None:
    summary = settled(text, reason, USAGE, parse_compact(input=CONVERSATION).items)
    assert summary.status == status and summary.text.startswith(begins)
    if status == "complete":
        assert summary == Summary(text="Sunny.")
        return
    assert f"[{summary.message}]" in summary.text
    assert ("after 1024 tokens" in (summary.message or "")) == (status == "cut_off")
    assert "You called" in summary.text and "It returned" in summary.text


def test_last_words_are_bounded_and_the_newest_and_keep_an_earlier_summary() -> None:
    earlier = compacted(CONVERSATION, "E" * 5000)["output"][-1]
    turns = [{"role": "assistant", "content": f"{n} " + "x" * 1500} for n in range(9)]
    items = parse_compact(input=[earlier, *turns]).items
    text = settled("", "stop", USAGE, items).text
    assert "E" * 5000 in text
    assert "8 xxx" in text and "0 xxx" not in text
    assert len(text) < 5000 + MAX_LAST_CHARS + 200


def test_what_the_user_wrote_stays_and_it_continues_from_there() -> None:
    response = compacted(CONVERSATION, "Paris is ☀, Oslo open.")
    assert (response["object"], response["created_at"]) == ("response.compaction", 1)
    assert response["usage"]["total_tokens"] == 13
    output = response["output"]
    ResponseCompactionItem.model_validate(output[-1], strict=True)
    assert len({item["id"] for item in output}) == 4
    body = json.dumps({"model": "m", "input": [*output, {"role": "user", "content": "Go on."}]})
    turns = openai_responses.parse(body.encode()).generation.input.messages  # type: ignore[union-attr]
    assert [(turn.role, turn.content) for turn in turns] == [
        ("system", "Be brief."),
        ("user", "Weather in Paris?"),
        ("user", "And in Oslo?"),
        ("assistant", "The conversation so far, in short:\n\nParis is ☀, Oslo open."),
        ("user", "Go on."),
    ]
    again = compacted(output, "Shorter.")["output"]
    assert [item["type"] for item in again] == ["message"] * 3 + ["compaction"]


def test_what_is_refused() -> None:
    other = {"type": "compaction", "encrypted_content": "gAAAA"}
    for fields, param in (
        ({}, "input"),
        ({"input": "Hi", "model": None}, "model"),
        ({"input": "Hi", "temperature": 0}, "temperature"),
        ({"input": [other]}, "input[0].encrypted_content"),
    ):
        with pytest.raises(ApiError) as refused:
            parse_compact(**fields)
        assert refused.value.param == param
