"""Anthropic's dialect through the whole gateway, by its own SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anthropic
import pytest

from inference.protocol.events import (
    Accepted,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from inference.protocol.generation import Submit, TokenCountRequest
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron, failing
from tests.inference.gateway.responses_support import breaks, counts

MESSAGES = "/v1/messages"
USAGE = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=3)
messages_body = partial(chat_body, max_tokens=50)
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather of a place.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


async def calls_a_tool(submit: Submit) -> AsyncIterator[list[Event]]:
    rid = submit.request_id
    yield [Accepted(request_id=rid, prompt_tokens=20)]
    yield [ReasoningDelta(request_id=rid, text="It is", opens="<think>")]
    yield [ReasoningDelta(request_id=rid, text=" Paris.", closes="</think>")]
    yield [Delta(request_id=rid, text="Let me look.")]
    yield [ToolCallStarted(request_id=rid, call_id="call_" + "a" * 24, name="get_weather")]
    yield [ToolCallDelta(request_id=rid, arguments='{"city": ')]
    yield [ToolCallDelta(request_id=rid, arguments='"Paris"}')]
    yield [ChoiceFinished(request_id=rid, reason="tool_calls")]
    yield [Finished(request_id=rid, usage=USAGE)]


async def test_the_sdk_creates(anthropic_sdk: anthropic.AsyncAnthropic) -> None:
    message = await anthropic_sdk.messages.create(**messages_body())
    (block,) = message.content
    assert isinstance(block, anthropic.types.TextBlock) and block.text == "The capital is Paris."
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (5, 2)
    assert usage.output_tokens == 5
    assert message._request_id and message.id == f"msg_{message._request_id}"


async def test_the_sdk_streams_thinking_text_and_a_tool_call(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
) -> None:
    neuron.script = calls_a_tool
    pieces: dict[str, str] = {}
    thinking: Any = {"type": "adaptive"}
    async with anthropic_sdk.messages.stream(
        **messages_body(tools=TOOLS, thinking=thinking)
    ) as stream:
        async for event in stream:
            match event.type:
                case "text":
                    pieces["text"] = pieces.get("text", "") + event.text
                case "thinking":
                    pieces["thinking"] = pieces.get("thinking", "") + event.thinking
                case "input_json":
                    pieces["input"] = pieces.get("input", "") + event.partial_json
        message = await stream.get_final_message()
    assert pieces == {
        "thinking": "It is Paris.",
        "text": "Let me look.",
        "input": '{"city": "Paris"}',
    }
    thought, _, call = message.content
    assert isinstance(thought, anthropic.types.ThinkingBlock) and thought.signature
    assert isinstance(call, anthropic.types.ToolUseBlock) and call.id.startswith("toolu_")
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (4, 16)
    assert usage.output_tokens_details and usage.output_tokens_details.thinking_tokens == 3


async def test_the_beta_client_of_claude_code(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
) -> None:
    """``?beta=true``, beta headers, edits that keep everything."""
    neuron.script = calls_a_tool
    edits: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    message = await anthropic_sdk.beta.messages.create(
        **messages_body(tools=TOOLS, context_management=edits, metadata={"user_id": "u"}),
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
    )
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert message.context_management and message.context_management.applied_edits == []


async def test_the_sdk_counts(anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron) -> None:
    neuron.script = counts
    messages: Any = messages_body()["messages"]
    counted = await anthropic_sdk.messages.count_tokens(
        model="gpt-4o", messages=messages, tools=TOOLS
    )
    assert counted.input_tokens == 42
    (submit,) = neuron.frames
    assert isinstance(submit, Submit) and isinstance(submit.request, TokenCountRequest)
    assert submit.model == "tiny" and submit.request.input.tools[0].name == "get_weather"


async def test_the_sdk_raises_what_went_wrong(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await anthropic_sdk.messages.create(**messages_body(model="huge"))
    assert unknown.value.type == "not_found_error"
    assert unknown.value.error_code == "model_not_found" and unknown.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await anthropic_sdk.messages.create(**messages_body(), extra_body={"temperature": 2})
    neuron.script = failing
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* 8192") as full:
        await anthropic_sdk.messages.create(**messages_body())
    assert full.value.error_code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError):
        await anthropic_sdk.messages.create(**messages_body(), stream=True)


async def test_the_sdk_raises_on_an_error_within_a_stream(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
) -> None:
    neuron.script = breaks
    stream = await anthropic_sdk.messages.create(**messages_body(), stream=True)
    with pytest.raises(anthropic.APIStatusError, match="The engine crashed") as broken:
        _ = [event async for event in stream]
    assert broken.value.type == "overloaded_error"


@each_case(
    ("headers", "status"),
    [
        ({"x-api-key": "sesame"}, 200),
        ({"x-api-key": "sesame", "authorization": "Bearer placeholder"}, 200),
        ({"x-api-key": "placeholder", "authorization": "Bearer sesame"}, 200),
        ({"authorization": "Bearer sesame", "anthropic-version": "2042-01-01"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": ""}, 401),
        ({}, 401),
    ],
)
async def test_where_a_key_is_set_it_is_needed(
    make_client: MakeClient, neuron: FakeNeuron, headers: dict[str, str], status: int
) -> None:
    client = make_client(api_key="sesame")
    answer = await client.post(MESSAGES, messages_body(), headers=headers)
    assert answer.status == status
    if status == 401:
        assert answer.json["type"] == "error"
        assert answer.error["type"] == "authentication_error"
        assert answer.json["request_id"] == answer.headers["request-id"]


async def test_refusals_before_the_body_is_read_are_in_this_dialect(client: AsgiClient) -> None:
    for method, path, status, type_ in (
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("GET", f"{MESSAGES}/count_tokens", 405, "invalid_request_error"),
        ("POST", f"{MESSAGES}/nothing", 404, "not_found_error"),
        ("GET", f"{MESSAGES}/batches/x", 404, "not_found_error"),
    ):
        answer = await client.open(method, path, {}).finish()
        assert (path, answer.status) == (path, status)
        assert (answer.json["type"], answer.error["type"]) == ("error", type_)
    answer = await client.post(MESSAGES, parts=[b"x" * 100_001])
    assert (answer.status, answer.error["type"]) == (413, "request_too_large")
