"""Requests as the body of Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fleet.upstreams.rules import untranslated_defaults
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TextInput,
    ToolCall,
)
from inference.protocol.sampling import DEFAULTS_OF_MODELS, SamplingOptions
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.anthropic.messages import INTERLEAVED_BETA
from inference.wire.common.parts import ImageFile, base64_image
from inference.wire.dialect import RequestContext
from inference.wire.errors import ApiError, UnsupportedParameterError
from inference.wire.openai.chat.request import parse
from inference.wire.upstream.messages_request import FALLBACK_MAX_TOKENS, body_of
from inference.wire.upstream.sending import Sending
from tests.cases import each_case
from tests.inference.wire.golden import Case, cases

TURNS = [{"role": "user", "content": "hi"}]
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJ0lEQVR42u3NsQkAAA"
    "jAsP7/tF7hIASyp6lTCQQCgUAgEAgEgi/BAjLD/C5w/SM9AAAAAElFTkSuQmCC"
)
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
BETAS = RequestContext(headers={"anthropic-beta": INTERLEAVED_BETA})


def sent(request: GenerationRequest, max_tokens: int | None = None) -> dict[str, Any]:
    chat = request.input
    images = chat.images if isinstance(chat, ChatInput) else []
    files = {image.digest: image for image in images if isinstance(image, ImageFile)}
    sending = Sending(model="claude", images=files, max_tokens=max_tokens)
    found: dict[str, Any] = json.loads(body_of(request, sending))
    return found


def openai_sent(**fields: Any) -> dict[str, Any]:
    body = {"model": "far", "messages": TURNS, **fields}
    return sent(parse(json.dumps(body).encode()).generation)


@each_case("case", cases("anthropic_messages"), ids=str)
def test_what_came_in_that_dialect_is_sent_as_it_came(case: Case) -> None:
    """The upstream gets a body that means the same, as our own reading of it shows."""
    given = case.given("request")
    try:
        asked = anthropic_messages.parse(given, BETAS).generation
    except ApiError:
        return
    body = json.dumps(sent(asked, asked.sampling.max_tokens)).encode()
    assert meaning(anthropic_messages.parse(body, BETAS).generation) == meaning(asked)


def meaning(request: GenerationRequest) -> Any:
    """Returns the request without what stays here: the user's name, earlier thoughts, where things
    stood, and what an answer looks like."""
    made = msgspec.to_builtins(msgspec.structs.replace(request, model="", end_user=""))
    if request.output_format is not None:
        del made["output_format"]["path"]
    chat = made["input"]
    for tool in chat.get("tools", []):
        del tool["path"]
    for message in chat["messages"]:
        message.pop("reasoning", None)
        for part in message.get("parts", []):
            if isinstance(part, dict):
                del part["path"]
    chat.pop("shows_reasoning", None)
    if made["sampling"].get("top_k") == 0:
        del made["sampling"]["top_k"]  # it is off
    return made


def test_turns_of_other_dialects() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    call = {"id": "call.1", "type": "function", "function": {"name": "f", "arguments": '{"a":"b"}'}}
    body = openai_sent(
        tools=[{"type": "function", "function": TOOL}],
        messages=[
            {"role": "system", "content": "be short"},
            {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
            {"role": "assistant", "content": "", "tool_calls": [call, {**call, "id": "c2"}]},
            {"role": "tool", "tool_call_id": "call.1", "content": "rain"},
            {"role": "tool", "tool_call_id": "c2", "content": ""},
            {"role": "system", "content": "and kind"},
            {"role": "user", "content": "so?"},
        ],
    )
    assert body["system"] == "be short\n\nand kind"
    first, second, third = body["messages"]
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    assert first["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "source": source},
    ]
    used = {"type": "tool_use", "name": "f", "input": {"a": "b"}}
    assert second["content"] == [{**used, "id": "call_1"}, {**used, "id": "c2"}]
    rain = [{"type": "text", "text": "rain"}]
    assert third["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": rain},
        {"type": "tool_result", "tool_use_id": "c2"},
        {"type": "text", "text": "so?"},
    ]
    (tool,) = body["tools"]
    assert tool == {"name": "f", "input_schema": TOOL["parameters"]}
    assert body["tool_choice"] == {"type": "auto"}
    assert body["max_tokens"] == FALLBACK_MAX_TOKENS


@each_case(
    ("fields", "expected"),
    [
        ({"temperature": 0.25, "top_p": 0.5}, {"temperature": 0.25, "top_p": 0.5}),
        ({"top_k": 7}, {"top_k": 7}),
        ({"stop": ["x"]}, {"stop_sequences": ["x"]}),
        ({"presence_penalty": 0, "min_p": 0, "repetition_penalty": 1, "n": 1}, {}),
        ({"logprobs": False, "frequency_penalty": 0.0, "top_k": 0}, {}),
        (
            {"reasoning_effort": "high"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        (
            {"reasoning_effort": "low", "include_reasoning": True},
            {
                "thinking": {"type": "adaptive", "display": "summarized"},
                "output_config": {"effort": "low"},
            },
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"thinking": {"type": "disabled"}},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}},
                }
            },
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        ),
    ],
)
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    plain, body = openai_sent(), openai_sent(**fields)
    assert {name: body[name] for name in body if name not in plain} == expected


@each_case(
    ("choice", "expected"),
    [
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"type": "tool", "name": "f"},
        ),
    ],
)
def test_the_choice_of_a_tool(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    body = openai_sent(tools=[{"type": "function", "function": {**TOOL, "strict": True}}], **choice)
    assert body["tool_choice"] == expected
    assert body["tools"][0]["strict"] is True


@each_case(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"seed": 0}, "seed"),
        ({"temperature": 1.5}, "temperature"),
        ({"logprobs": True}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_what_has_no_word_there_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameterError) as caught:
        openai_sent(**fields)
    assert (caught.value.param or "").startswith(param)


def test_every_sampling_option_is_translated_or_refused() -> None:
    values: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.5,
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
        value = values.get(name, 1)
        options = SamplingOptions(**{name: value})
        is_refused = False
        try:
            body = sent(GenerationRequest(model="far", input=chat, sampling=options))
        except UnsupportedParameterError as error:
            is_refused = error.param == name
            assert is_refused, name
        else:
            assert body != plain, name
        if name in DEFAULTS_OF_MODELS:
            unfit = untranslated_defaults("anthropic", {name: value})
            assert unfit == ([name] if is_refused else []), "of defaults the same are left out"


def test_a_prompt_without_turns_is_refused() -> None:
    with pytest.raises(UnsupportedParameterError):
        sent(GenerationRequest(model="far", input=TextInput(texts=["a"])))


def test_a_result_of_no_call_is_refused() -> None:
    turn = ChatMessage(role="tool", content="x")
    with pytest.raises(ApiError) as caught:
        sent(GenerationRequest(model="far", input=ChatInput(messages=[turn])))
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_call_that_was_cut_off_is_sent_as_an_object() -> None:
    call = ToolCall(id="c", name="f", arguments="{")
    turn = ChatMessage(role="assistant", tool_calls=[call])
    body = sent(GenerationRequest(model="far", input=ChatInput(messages=[turn])))
    assert body["messages"][0]["content"][0]["input"] == {"invalid_arguments": "{"}


def test_an_image_of_another_type_is_refused() -> None:
    image = msgspec.structs.replace(base64_image(PNG, "p"), media_type="image/bmp")
    turn = ChatMessage(role="user", parts=[image])
    with pytest.raises(UnsupportedParameterError, match="image/bmp"):
        sent(GenerationRequest(model="far", input=ChatInput(messages=[turn])))
