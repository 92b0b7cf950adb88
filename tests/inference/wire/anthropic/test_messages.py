"""Anthropic's dialect against its own SDK's types, and whatever way an answer is cut."""

from __future__ import annotations

import json
from random import Random
from typing import Any, get_args, get_type_hints

import anthropic.types as sdk
import anthropic.types.beta as beta
import orjson
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.events import (
    Event,
    Failure,
)
from inference.protocol.generation import (
    ChatInput,
)
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import page_of
from inference.wire.errors import ApiError, RequestFailedError
from tests.cases import each_case
from tests.inference.wire.answers import MADE, Part, body_of, events_of, folded, parts, randoms

NESTED = anthropic_messages.NESTED_FIELDS
MESSAGES = [{"role": "user", "content": "Hi"}]
BASE: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": MESSAGES}


def parse(**changes: Any) -> anthropic_messages.MessagesRequest:
    return anthropic_messages.parse(orjson.dumps({**BASE, **changes}))


@each_case(
    ("params", "fields"),
    [
        (message_create_params.MessageCreateParamsStreaming, anthropic_messages.FIELDS),
        (beta_create_params.MessageCreateParamsStreaming, anthropic_messages.FIELDS),
        (message_count_tokens_params.MessageCountTokensParams, anthropic_messages.COUNT_FIELDS),
        (beta_count_params.MessageCountTokensParams, anthropic_messages.COUNT_FIELDS),
        (sdk.ToolParam, NESTED["tools"]),
        (beta.BetaToolParam, NESTED["tools"]),
        (sdk.UserMessageParam, NESTED["user messages"]),
        (sdk.AssistantMessageParam, NESTED["assistant messages"]),
        (beta.BetaSystemMessageParam, NESTED["system messages"]),
        (sdk.TextBlockParam, NESTED["text blocks"]),
        (sdk.ThinkingBlockParam, NESTED["thinking blocks"]),
        (sdk.RedactedThinkingBlockParam, NESTED["redacted_thinking blocks"]),
        (sdk.ToolUseBlockParam, NESTED["tool_use blocks"]),
        (sdk.ToolResultBlockParam, NESTED["tool_result blocks"]),
        (sdk.ToolReferenceBlockParam, NESTED["tool_reference blocks of a result"]),
        (sdk.ToolChoiceAnyParam, NESTED["tool_choice any"]),
        (sdk.ToolChoiceAutoParam, NESTED["tool_choice auto"]),
        (sdk.ToolChoiceNoneParam, NESTED["tool_choice none"]),
        (sdk.ToolChoiceToolParam, NESTED["tool_choice tool"]),
        (sdk.ThinkingConfigAdaptiveParam, NESTED["thinking adaptive"]),
        (sdk.ThinkingConfigDisabledParam, NESTED["thinking disabled"]),
        (sdk.ThinkingConfigEnabledParam, NESTED["thinking enabled"]),
        (beta.BetaOutputConfigParam, NESTED["output_config"]),
        (sdk.JSONOutputFormatParam, NESTED["output_config.format"]),
        (beta.BetaContextManagementConfigParam, NESTED["context_management"]),
        (beta.BetaClearThinking20251015EditParam, NESTED["clear_thinking_20251015"]),
        (sdk.CacheControlEphemeralParam, NESTED["cache_control"]),
        (sdk.MetadataParam, NESTED["metadata"]),
        (sdk.DiagnosticsParam, NESTED["diagnostics"]),
    ],
)
def test_every_field_of_the_sdk_is_in_a_table(params: Any, fields: dict[str, Any]) -> None:
    assert get_type_hints(params).keys() <= fields.keys()


SERVER_TOOLS = [params for params in get_args(sdk.ToolUnionParam) if params is not sdk.ToolParam]


@each_case("params", SERVER_TOOLS)
def test_every_tool_of_a_server_is_refused_by_its_type(params: Any) -> None:
    kinds = get_args(get_type_hints(params)["type"])
    assert kinds
    for kind in kinds:
        with pytest.raises(ApiError, match=kind) as refused:
            parse(tools=[{"type": kind, "name": "t"}])
        assert refused.value.param == "tools[0].type"


def test_a_count_renders_what_the_message_would() -> None:
    options: dict[str, Any] = {
        "system": "Be brief.",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
    }
    body = orjson.dumps({"model": "m", "messages": MESSAGES, **options})
    counted = anthropic_messages.parse_count(body)
    assert counted.input == parse(**options).generation.input


@each_case("name", ["max_tokens", "stream", "temperature", "stop_sequences"])
def test_a_count_has_nothing_to_generate(name: str) -> None:
    body = {"model": "m", "messages": MESSAGES, name: 1}
    with pytest.raises(ApiError, match=name):
        anthropic_messages.parse_count(orjson.dumps(body))


THINKING = [{}, {"thinking": {"type": "adaptive"}}]
OMITTED = {"thinking": {"type": "adaptive", "display": "omitted"}}


@pytest.mark.parametrize("thinking", [*THINKING, OMITTED], ids=["hidden", "shown", "omitted"])
@given(answer=parts(st.text(min_size=1, max_size=20), min_size=1), random=randoms)
def test_streams_and_bodies_agree_however_they_are_cut(
    thinking: dict[str, Any], answer: list[Part], random: Random
) -> None:
    request = parse(**thinking)
    one, other = events_of(answer, random), events_of(answer, random)
    whole = _body(request, one)
    assert whole == _body(request, other)
    assert _folded(request, one) == _folded(request, other) == whole


def _body(request: anthropic_messages.MessagesRequest, events: list[Event]) -> Any:
    return body_of(request.body_encoder(**MADE), events)


def _folded(request: anthropic_messages.MessagesRequest, events: list[Event]) -> Any:
    """What a client that follows the documentation makes of the stream."""
    frames = folded(request.stream_encoder(**MADE), events).decode().split("\n\n")
    assert frames.pop() == ""
    message: dict[str, Any] = {}
    names = []
    for frame in frames:
        head, data = frame.split("\n", 1)
        payload = json.loads(data.removeprefix("data: "))
        assert head == f"event: {payload['type']}"
        names.append(payload["type"])
        _fold(message, payload)
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert names.count("content_block_start") == names.count("content_block_stop")
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("json"))
    return message


def _fold(message: dict[str, Any], payload: dict[str, Any]) -> None:
    match payload["type"]:
        case "message_start":
            message.update(payload["message"])
        case "content_block_start":
            assert payload["index"] == len(message["content"])
            message["content"].append(payload["content_block"])
        case "content_block_delta":
            block, delta = message["content"][payload["index"]], payload["delta"]
            key = {"partial_json": "json"}
            for name, value in delta.items():
                if name != "type":
                    name = key.get(name, name)
                    block[name] = block.get(name, "") + value
        case "message_delta":
            message.update(payload["delta"])
            message["usage"] = payload["usage"]


def test_equal_thoughts_have_equal_signatures_and_others_others() -> None:
    def signature(text: str) -> str:
        body = _body(parse(**THINKING[1]), events_of([("thought", text)]))
        signed: str = body["content"][0]["signature"]
        return signed

    assert signature("a") == signature("a") != signature("b")


@given(random=randoms)
def test_an_answer_can_be_sent_back_as_it_came(random: Random) -> None:
    answer = [("thought", "hm"), ("text", "Let me see."), ("call", "x")]
    body = _body(parse(**THINKING[1]), events_of(answer, random))
    result = {"type": "tool_result", "tool_use_id": body["content"][-1]["id"], "content": "ok"}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": body["content"]},
        {"role": "user", "content": [result]},
    ]
    chat = parse(messages=history).generation.input
    assert isinstance(chat, ChatInput)
    _, answered, tool_result = chat.messages
    assert (answered.reasoning, answered.content) == ("hm", "Let me see.")
    assert answered.tool_calls[0].arguments == '{"a":"x"}'
    assert tool_result.tool_call_id == answered.tool_calls[0].id


@each_case(
    ("code", "type_", "status"),
    [
        ("queue_full", "overloaded_error", 503),
        ("engine_error", "api_error", 500),
        ("template_render_failed", "invalid_request_error", 422),
        ("model_not_found", "not_found_error", 404),
    ],
)
def test_errors_have_the_word_for_their_status(code: str, type_: str, status: int) -> None:
    error = RequestFailedError(Failure(code=code, message="No."))
    payload = json.loads(anthropic_errors.error_body(error, request_id="r"))
    assert error.status == status
    assert payload["type"] == "error" and payload["request_id"] == "r"
    assert payload["error"]["type"] == type_
    assert payload["error"]["details"] == {"error_code": code, "param": None}


@each_case("num_objects", [0, 2, 3])
def test_a_page_says_whether_more_follow(num_objects: int) -> None:
    page = page_of([{"id": str(number)} for number in range(num_objects)], 2)
    assert [one["id"] for one in page["data"]] == ["0", "1"][:num_objects]
    assert page["has_more"] is (num_objects > 2)
