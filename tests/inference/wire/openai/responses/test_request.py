"""The Responses dialect's requests: fields, schemas, thoughts, history, and how their prompts are
counted."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_compact_params import ResponseCompactParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsStreaming,
)

from inference.wire.errors import ApiError
from inference.wire.openai.responses import compact as openai_responses_compact
from inference.wire.openai.responses import request as openai_responses
from inference.wire.openai.responses.fields import carried, encrypted_content
from inference.wire.openai.responses.request import ResponsesRequest
from inference.wire.openai.responses.tools import is_strict
from inference.wire.openai.responses.websocket import error_message, parse_message
from tests.cases import each_case


def parse(**more: Any) -> openai_responses.ResponsesRequest:
    return openai_responses.parse(json.dumps({"model": "m", "input": "Hi", **more}).encode())


@each_case(
    ("params", "fields"),
    [
        (ResponseCreateParamsBase, openai_responses.FIELDS),
        (ResponseCreateParamsStreaming, openai_responses.FIELDS),
        (InputTokenCountParams, openai_responses.COUNT_FIELDS),
        (ResponseCompactParams, openai_responses_compact.FIELDS),
    ],
)
def test_every_field_of_the_sdk_is_declared(params: Any, fields: dict[str, Any]) -> None:
    assert get_type_hints(params).keys() <= fields.keys()


@given(thought=st.text())
def test_a_thought_travels_whole(thought: str) -> None:
    assert encrypted_content(carried(thought), "p") == thought


@each_case("given_text", ["", "helexa1", "helexa1.!", "helexa1._w==", "gAAAA"])
def test_thoughts_of_others_are_refused(given_text: str) -> None:
    with pytest.raises(ApiError):
        encrypted_content(given_text, "p")


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
