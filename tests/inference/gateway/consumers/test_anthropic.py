"""Anthropic's dialect through the whole gateway, by its own SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anthropic
import pytest

from inference.protocol.events import Delta, Event, ToolCallStarted
from inference.protocol.generation import Submit, TokenCountRequest
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.fake_neuron import FakeNeuron, failing
from tests.inference.gateway.responses_support import breaks, calls_a_tool, counts

MESSAGES = "/v1/messages"
messages_body = partial(chat_body, max_tokens=50)
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather of a place.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


async def looks(submit: Submit) -> AsyncIterator[list[Event]]:
    """Says so before it calls a tool."""
    async for events in calls_a_tool(submit):
        if isinstance(events[0], ToolCallStarted):
            yield [Delta(request_id=submit.request_id, text="Let me look.")]
        yield events


async def test_the_sdk_creates_and_counts(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
) -> None:
    message = await anthropic_sdk.messages.create(**messages_body())
    (block,) = message.content
    assert isinstance(block, anthropic.types.TextBlock) and block.text == "The capital is Paris."
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 2, 5)
    assert message._request_id and message.id == f"msg_{message._request_id}"
    neuron.script = counts
    messages: Any = messages_body()["messages"]
    counted = await anthropic_sdk.messages.count_tokens(
        model="gpt-4o", messages=messages, tools=TOOLS
    )
    assert counted.input_tokens == 42
    submit = neuron.frames[-1]
    assert isinstance(submit, Submit) and isinstance(submit.request, TokenCountRequest)
    assert submit.model == "tiny" and submit.request.input.tools[0].name == "get_weather"


async def test_the_sdk_streams_thinking_text_and_a_tool_call(
    anthropic_sdk: anthropic.AsyncAnthropic, neuron: FakeNeuron
) -> None:
    neuron.script = looks
    pieces = {"text": "", "thinking": "", "input_json": ""}
    thinking: Any = {"type": "adaptive"}
    async with anthropic_sdk.messages.stream(
        **messages_body(tools=TOOLS, thinking=thinking)
    ) as stream:
        async for event in stream:
            if event.type in pieces:
                field = {"input_json": "partial_json"}.get(event.type, event.type)
                pieces[event.type] += getattr(event, field)
        message = await stream.get_final_message()
    assert pieces == {
        "thinking": "It is Paris.",
        "text": "Let me look.",
        "input_json": '{"city": "Paris"}',
    }
    thought, _, call = message.content
    assert isinstance(thought, anthropic.types.ThinkingBlock) and thought.signature
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (4, 16)
    assert usage.output_tokens_details and usage.output_tokens_details.thinking_tokens == 3


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
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* 8192") as full:
            await anthropic_sdk.messages.create(**messages_body(), stream=stream)
        assert full.value.error_code == "context_length_exceeded"
    neuron.script = breaks
    events = await anthropic_sdk.messages.create(**messages_body(), stream=True)
    with pytest.raises(anthropic.APIStatusError, match="The engine crashed") as broken:
        _ = [event async for event in events]
    assert broken.value.type == "overloaded_error"


@each_case(
    ("method", "path", "body", "status", "type_"),
    [
        ("GET", MESSAGES, b"{}", 405, "invalid_request_error"),
        ("GET", f"{MESSAGES}/count_tokens", b"{}", 405, "invalid_request_error"),
        ("POST", f"{MESSAGES}/nothing", b"{}", 404, "not_found_error"),
        ("GET", f"{MESSAGES}/batches/x", b"{}", 404, "not_found_error"),
        ("POST", MESSAGES, b"x" * 100_001, 413, "request_too_large"),
    ],
)
async def test_refusals_before_the_body_is_read_are_in_this_dialect(
    client: AsgiClient, method: str, path: str, body: bytes, status: int, type_: str
) -> None:
    answer = await client.open(method, path, parts=[body]).finish()
    assert (answer.status, answer.json["type"], answer.error["type"]) == (status, "error", type_)
