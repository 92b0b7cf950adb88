"""The parsers answer anything with a request or an ``ApiError``, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.protocol.generation import (
    GenerationRequest,
    Submit,
    decode_inbox_frame,
    encode_inbox_frame,
)
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import RequestContext
from inference.wire.errors import ApiError
from inference.wire.openai import completions as openai_completions
from inference.wire.openai import errors as openai_errors
from inference.wire.openai.chat import request as openai_chat
from inference.wire.openai.responses import request as openai_responses
from tests.cases import each_case

PARSERS = [anthropic_messages.parse, openai_chat.parse, openai_completions.parse]
MESSAGES = [{"role": "user", "content": "Hi"}]
GOOD = {"model": "tiny", "messages": MESSAGES}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "tool", "text", "image_url", "auto", "none", "0", "7", "-1"])
)
names = st.sampled_from(
    sorted(
        {
            *anthropic_messages.FIELDS,
            *openai_chat.FIELDS,
            *openai_completions.FIELDS,
            *("role", "content", "type", "text"),
        }
    )
) | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(names, values, max_size=6)


def accepts(parse: Any, body: bytes) -> bool:
    """Whether it was accepted; then it crosses to the neuron unharmed."""
    try:
        request = parse(body)
    except ApiError as error:
        assert 400 <= error.status < 500 and error.code and error.message
        assert (
            orjson.loads(openai_errors.error_body(error, request_id="r"))["error"]["code"]
            == error.code
        )
        return False
    generation: GenerationRequest = request.generation
    submit = Submit(
        request_id="r", gateway_id="g", model="m", request=generation, deadline_unix_s=0.0
    )
    assert decode_inbox_frame(encode_inbox_frame(submit)) == submit
    return True


@pytest.mark.parametrize("parse", PARSERS)
@given(body=st.binary(max_size=200))
def test_any_bytes(parse: Any, body: bytes) -> None:
    accepts(parse, body)


@pytest.mark.parametrize("parse", PARSERS)
@given(value=values)
def test_any_json(parse: Any, value: Any) -> None:
    accepts(parse, json.dumps(value).encode())


@pytest.mark.parametrize("parse", PARSERS)
@given(body=bodies)
def test_a_good_request_with_anything_on_top(parse: Any, body: dict[str, Any]) -> None:
    put_on_top(parse, body)


@pytest.mark.slow
@pytest.mark.parametrize("parse", PARSERS)
@settings(max_examples=1000)
@given(body=bodies)
def test_a_good_request_with_much_on_top(parse: Any, body: dict[str, Any]) -> None:
    put_on_top(parse, body)


def put_on_top(parse: Any, body: dict[str, Any]) -> None:
    good = {"model": "tiny", "messages": MESSAGES, "prompt": "Hi", "max_tokens": 9}
    del good["messages" if parse is openai_completions.parse else "prompt"]
    accepts(parse, json.dumps({**good, **body}).encode())


@given(message=st.dictionaries(names, values, max_size=4), role=st.text(max_size=4))
def test_any_message(message: dict[str, Any], role: str) -> None:
    for body in (message, {"role": "user", **message}, {"role": role, **message}):
        accepts(openai_chat.parse, json.dumps({"model": "m", "messages": [body]}).encode())


@each_case(
    "nested",
    [
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"model":"m","prompt":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"model":"m","messages":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":'
        + b'{"a":' * 900
        + b"1"
        + b"}" * 901,
    ],
)
@each_case("parse", PARSERS)
def test_deep_nesting_is_refused(parse: Any, nested: bytes) -> None:
    assert not accepts(parse, nested)


@each_case(
    "text", [b'"\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b"NaN", b"Infinity", b"1e999", b"-1e999"]
)
def test_what_json_cannot_hold_is_refused(text: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":%b}]}' % text
    assert not accepts(openai_chat.parse, body)


@each_case("field", ["max_tokens", "n", "top_k", "seed"])
def test_a_whole_number_may_be_written_with_a_point(field: str) -> None:
    """JSON schema allows it. Settings of some clients are floats, and other servers take those."""
    pointed, plain = (
        openai_chat.parse(json.dumps(GOOD | {field: value}).encode()) for value in (3.0, 3)
    )
    assert pointed == plain


@each_case(
    ("field", "value"),
    [
        ("temperature", 1e308),
        ("temperature", -0.1),
        ("temperature", True),
        ("top_p", 1.01),
        ("min_p", -1),
        ("repetition_penalty", 0),
        ("top_k", -2),
        ("top_k", 2**63),
        ("max_tokens", 0),
        ("max_tokens", 10**30),
        ("max_tokens", 1.5),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("logit_bias", {"-1": 0}),
        ("logit_bias", {"\u0661": 0}),
        ("logit_bias", {"99999999999": 0}),
        ("metadata", {"k": 1}),
        ("metadata", {str(n): "v" for n in range(17)}),
        ("stop", ["a", ""]),
        ("model", ""),
        ("model", "x" * 257),
        ("stream", 1),
        ("stream", "true"),
        ("stream_options", []),
        ("chat_template_kwargs", []),
        ("user", 7),
        ("n", 0),
        ("n", 129),
        ("n", 1.5),
        ("tools", {}),
        ("tools", [7]),
        ("tools", [{}]),
        ("tools", [{"type": 7, "function": {"name": "f"}}]),
        ("tools", [{"type": "function", "function": {"name": "f" * 129}}]),
        ("tools", [{"type": "function", "function": {"name": "f", "strict": "yes"}}]),
        ("tool_choice", 7),
        ("tool_choice", {}),
        ("tool_choice", {"type": "allowed_tools"}),
        ("tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}),
        ("response_format", "json_object"),
        ("response_format", {}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a b"}}),
        ("reasoning_effort", 1),
        ("include_reasoning", 1),
        ("parallel_tool_calls", "no"),
    ],
)
def test_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as refused:
        openai_chat.parse(json.dumps({**GOOD, field: value}).encode())
    assert refused.value.status == 400
    assert (refused.value.param or "").startswith(field)


def test_null_is_the_same_as_absent() -> None:
    fields = [name for name in openai_chat.FIELDS if name not in GOOD]
    nulls = json.dumps({**GOOD, **dict.fromkeys(fields)}).encode()
    assert openai_chat.parse(nulls) == openai_chat.parse(json.dumps(GOOD).encode())
    unknown = json.dumps({**GOOD, "of_another_server": None}).encode()
    assert openai_chat.parse(unknown) == openai_chat.parse(json.dumps(GOOD).encode())


def test_the_last_of_two_equal_keys_counts() -> None:
    body = b'{"model":"a","model":"b","prompt":"Hi"}'
    assert openai_completions.parse(body).generation.model == "b"


def schema_of_depth(depth: int) -> dict[str, Any]:
    """``depth`` objects, one inside the other."""
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@each_case(("depth", "taken"), [(96, True), (97, False), (900, False)])
def test_how_deep_a_schema_may_be(depth: int, taken: bool) -> None:
    schema = schema_of_depth(depth)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    format_ = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for more in ({"tools": tools}, {"response_format": format_}):
        assert accepts(openai_chat.parse, json.dumps({**GOOD, **more}).encode()) is taken


def test_a_format_says_whether_it_is_strict() -> None:
    for said, strict in (({}, True), ({"strict": True}, True), ({"strict": False}, False)):
        named = {"name": "a", "schema": {}, **said}
        chat = {**GOOD, "response_format": {"type": "json_schema", "json_schema": named}}
        response = {
            "model": "m",
            "input": "Hi",
            "text": {"format": {"type": "json_schema"} | named},
        }
        for parse, body in ((openai_chat.parse, chat), (openai_responses.parse, response)):
            demanded = parse(json.dumps(body).encode()).generation.output_format
            assert demanded is not None
            assert demanded.strict is strict


def test_a_token_that_is_none_is_named_among_many() -> None:
    for wrong in (True, -1, 2**31, 1.5, "7", None):
        body = {"model": "m", "prompt": [*range(1000), wrong]}
        with pytest.raises(ApiError) as refused:
            openai_completions.parse(json.dumps(body).encode())
        assert refused.value.param == "prompt[1000]"


CALLING = {
    "role": "assistant",
    "content": [],
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


@each_case(
    ("parse", "body", "param"),
    [
        *(
            (
                openai_chat.parse,
                {"model": "m", "messages": [*MESSAGES, {"role": role, "content": []}]},
                "messages[1].content",
            )
            for role in ("user", "system", "developer", "assistant")
        ),
        (
            openai_chat.parse,
            GOOD | {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.name",
        ),
        (
            openai_responses.parse,
            {"model": "m", "input": [{"role": "user", "content": []}]},
            "input[0].content",
        ),
        (
            anthropic_messages.parse,
            {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": []}]},
            "messages[0].content",
        ),
    ],
)
def test_what_is_empty_is_refused(parse: Any, body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(orjson.dumps(body), RequestContext())
    assert refused.value.param == param


def test_calls_and_their_results_may_be_empty() -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": []}
    of_zed = {"role": "user", "content": []}
    body = {"model": "m", "messages": [*MESSAGES, CALLING, result, of_zed]}
    assert openai_chat.parse(orjson.dumps(body), RequestContext())
