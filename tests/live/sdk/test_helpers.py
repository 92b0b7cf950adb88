"""What the SDKs build on top of their API calls: tool runners, parsed tools, parsed answers. Each
sends fields of its own accord."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pydantic
import pytest

from tests.live.scripted.model import ScriptedModel
from tests.live.sdk.asking import OSLO, OSLO_CALL


class Step(pydantic.BaseModel):
    explanation: str
    result: float


class Solution(pydantic.BaseModel):
    steps: list[Step]
    answer: float


GOOD = '{"steps": [{"explanation": "halve it", "result": 4}], "answer": 4}'


class GetWeather(pydantic.BaseModel):
    """The weather of the next days."""

    city: str
    days: int


def weather_tool() -> Any:
    return openai.pydantic_function_tool(GetWeather, name="get_weather")


@anthropic.beta_tool
def get_weather(city: str, days: int = 1) -> str:
    """The weather of the next days.

    Args:
        city: Where.
        days: How many.
    """
    return f"sleet in {city} for {days} days"


@pytest.mark.parametrize("streams", [False, True])
def test_anthropic_tool_runner(
    anthropic_client: anthropic.Anthropic, hermes: ScriptedModel, streams: bool
) -> None:
    """It asks for a thread first and continues without one."""
    hermes.answers("run the tools", OSLO_CALL)
    hermes.answers("sleet in Oslo for 3 days", "Stay home.")
    run: Any = anthropic_client.beta.messages.tool_runner
    runner = run(
        model="hermes",
        max_tokens=1000,
        messages=[{"role": "user", "content": "run the tools"}],
        tools=[get_weather],
        stream=streams,
    )
    turns = [turn.get_final_message() if streams else turn for turn in runner]
    assert [turn.stop_reason for turn in turns] == ["tool_use", "end_turn"]
    assert turns[-1].content[0].text == "Stay home."


def test_the_sdks_parse_their_own_classes(
    openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, hermes: ScriptedModel
) -> None:
    """The grammar is checked against each written token."""
    hermes.answers("solve it", GOOD)
    hermes.answers("solve it badly", GOOD.replace("4}", '"four"}'))
    messages: Any = [{"role": "user", "content": "solve it"}]
    completions: Any = openai_client.chat.completions
    fields = {"model": "hermes", "messages": messages, "response_format": Solution}
    with completions.stream(**fields) as stream:
        streamed = stream.get_final_completion()
    response = openai_client.responses.parse(model="hermes", input="solve it", text_format=Solution)
    message = anthropic_client.messages.parse(
        model="hermes", max_tokens=500, messages=messages, output_format=Solution
    )
    chats = (completions.parse(**fields), streamed)
    parsed = [chat.choices[0].message.parsed for chat in chats]
    wanted = Solution.model_validate_json(GOOD)
    assert [*parsed, response.output_parsed, message.parsed_output] == [wanted] * 4
    badly = [{"role": "user", "content": "solve it badly"}]
    with pytest.raises(openai.APIError, match="grammar"):
        completions.parse(**fields | {"messages": badly})


def test_openai_parses_tools(openai_client: openai.OpenAI, hermes: ScriptedModel) -> None:
    """Whole and streamed; and the parsed message goes back as it is."""
    hermes.answers("parse the call", OSLO_CALL)
    hermes.answers("slush in Oslo", "Boots.")
    question: Any = {"role": "user", "content": "parse the call"}
    completions: Any = openai_client.chat.completions
    fields = {"model": "hermes", "messages": [question], "tools": [weather_tool()]}
    with completions.stream(**fields) as stream:
        streamed = stream.get_final_completion()
    for answer in (completions.parse(**fields), streamed):
        message = answer.choices[0].message
        assert message.tool_calls[0].function.parsed_arguments == GetWeather(**OSLO)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id}
        result["content"] = "slush in Oslo"
        reply = completions.parse(**fields | {"messages": [question, message, result]})
        assert reply.choices[0].message.content == "Boots."
