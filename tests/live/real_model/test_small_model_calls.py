"""The default model calls tools: it cannot, but the grammar leaves it nothing else to write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.live.operating.on_demand import LoadedOnDemand
from tests.live.serving import Serve

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
QUESTION: Any = [{"role": "user", "content": "How warm will it be in Oslo this week?"}]
CLOCK_SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def check_arguments(given: Any) -> None:
    assert set(given) == {"city", "unit", "days"}
    assert isinstance(given["city"], str)
    assert given["unit"] in ("celsius", "fahrenheit")
    assert 1 <= given["days"] <= 14


@pytest.fixture
def model(on_demand: LoadedOnDemand) -> str:
    """The default model's weights, with a template that has a place for tools."""
    return on_demand.name


@pytest.fixture(scope="module")
def client(shared_server: Serve) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("seed", [1, 2])
def test_chat(client: openai.OpenAI, model: str, seed: int) -> None:
    functions = [
        {"name": "get_weather", "parameters": SCHEMA, "strict": True},
        {"name": "get_time", "parameters": CLOCK_SCHEMA},
    ]
    create: Any = client.chat.completions.create
    answer = create(
        model=model,
        messages=QUESTION,
        tools=[{"type": "function", "function": function} for function in functions],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        parallel_tool_calls=False,
        max_tokens=200,
        seed=seed,
    )
    (choice,) = answer.choices
    assert not choice.message.content
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    check_arguments(json.loads(call.function.arguments))


def test_responses(client: openai.OpenAI, model: str) -> None:
    create: Any = client.responses.create
    response = create(
        model=model,
        input=QUESTION,
        tools=[{"type": "function", "name": "get_weather", "parameters": SCHEMA}],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=200,
        temperature=0,
    )
    (call,) = response.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    check_arguments(json.loads(call.arguments))


def test_messages(helexa: Serve, model: str) -> None:
    with anthropic.Anthropic(base_url=helexa.url, api_key="none", max_retries=0) as client:
        create: Any = client.messages.create
        message = create(
            model=model,
            max_tokens=200,
            messages=QUESTION,
            tools=[{"name": "get_weather", "input_schema": SCHEMA}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )
    (block,) = message.content
    assert (block.type, block.name) == ("tool_use", "get_weather")
    assert message.stop_reason == "tool_use"
    check_arguments(block.input)
