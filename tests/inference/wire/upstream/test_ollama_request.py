"""Requests as the body of Ollama's chat and generate."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest

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
from inference.wire.openai.chat.request import parse
from inference.wire.upstream.ollama import body_of, path_of
from inference.wire.upstream.sending import Sending
from tests.cases import each_case
from tests.inference.wire.golden import Case, cases
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
