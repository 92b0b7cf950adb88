"""Each dialect by its SDK, whole and streamed, from a neuron that renders, parses and enforces: a
thought, a call that is required, and the tool's result. The details of each are in the tests of
``inference.text``, ``inference.wire`` and ``inference.gateway``; each field in
``tests/strangers/fields``."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pydantic
import pytest
from anthropic.types import Message
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.live.scripted.model import OSLO, OSLO_CALL, SCHEMA, ScriptedModel

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
WEATHER_IN_RESPONSES = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
WEATHER_IN_MESSAGES = {"name": "get_weather", "input_schema": SCHEMA}
THOUGHT = f"<think>\nShould I {OSLO_CALL}?\n</think>\n\n"
"""A call in the thoughts is a thought."""


class Asker:
    """Chat completions, responses and messages of the model ``hermes``, folded by the SDK where
    they were streamed."""

    def __init__(
        self, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, *, streams: bool
    ) -> None:
        self._openai: Any = openai_client
        self._anthropic: Any = anthropic_client
        self._streams = streams

    def chat(self, messages: list[Any], **fields: Any) -> ChatCompletion:
        body = {"model": "hermes", "messages": messages} | fields
        create = self._openai.chat.completions.create
        if not self._streams:
            answer: ChatCompletion = create(**body)
            return answer
        state = ChatCompletionStreamState()
        for chunk in create(**body, stream=True, stream_options={"include_usage": True}):
            state.handle_chunk(chunk)
        return state.get_final_completion()

    def respond(self, given: Any, **fields: Any) -> Response:
        answer: Response
        if self._streams:
            *_, last = self._openai.responses.create(
                model="hermes", input=given, stream=True, **fields
            )
            answer = last.response
        else:
            answer = self._openai.responses.create(model="hermes", input=given, **fields)
        assert answer.status == "completed"
        return answer

    def message(self, messages: list[Any], **fields: Any) -> Message:
        body = {"model": "hermes", "max_tokens": 2000, "messages": messages} | fields
        answer: Message
        if self._streams:
            with self._anthropic.messages.stream(**body) as events:
                answer = events.get_final_message()
        else:
            answer = self._anthropic.messages.create(**body)
        return answer


@pytest.fixture(params=["whole", "streamed"])
def asker(
    request: pytest.FixtureRequest,
    openai_client: openai.OpenAI,
    anthropic_client: anthropic.Anthropic,
) -> Asker:
    return Asker(openai_client, anthropic_client, streams=request.param == "streamed")


@pytest.fixture
def hermes(hermes: ScriptedModel) -> ScriptedModel:
    """The scripted engine fails where the grammar forbids what the script writes."""
    hermes.answers("weather in Oslo?", THOUGHT + OSLO_CALL)
    hermes.answers("rain until Sunday", "Take an umbrella.")
    hermes.answers("you will not call", "No.")
    return hermes


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


QUESTION, REFUSED = user("what is the weather in Oslo?"), user("you will not call")


def test_chat_completions(asker: Asker, hermes: ScriptedModel) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "extra_body": {"include_reasoning": True}}
    (choice,) = asker.chat([QUESTION], tool_choice="required", **fields).choices
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    assert "Should I" in (choice.message.model_extra or {})["reasoning_content"]
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == OSLO
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain until Sunday"}
    answer = asker.chat([QUESTION, choice.message, result], **fields)
    assert answer.choices[0].message.content == "Take an umbrella."
    received = hermes.received("rain until Sunday")[-1]
    assert "Should I" in received.prompt
    assert answer.usage is not None and answer.usage.prompt_tokens == received.num_prompt_tokens
    with pytest.raises(openai.APIError, match="grammar"):
        asker.chat([REFUSED], tools=[WEATHER], tool_choice="required")


def test_responses(asker: Asker, hermes: ScriptedModel) -> None:
    """History sent or stored is the same history; instructions are not carried over."""
    tools: dict[str, Any] = {"tools": [WEATHER_IN_RESPONSES]}
    thinks: dict[str, Any] = {"reasoning": {"effort": "high"}, "tool_choice": "required"}
    asked = asker.respond([QUESTION], instructions="Like a pirate.", **thinks, **tools)
    assert "pirate" in hermes.received("weather in Oslo?")[-1].prompt
    thought, call = asked.output
    assert (thought.type, call.type) == ("reasoning", "function_call")
    assert (call.name, json.loads(call.arguments)) == ("get_weather", OSLO)
    result = {"type": "function_call_output", "call_id": call.call_id}
    result["output"] = "rain until Sunday"
    sent = [QUESTION, *(item.to_dict() for item in asked.output), result]
    for given, fields in ((sent, {}), ([result], {"previous_response_id": asked.id})):
        assert asker.respond(given, **fields, **tools).output_text == "Take an umbrella."
    one, other = (each.prompt for each in hermes.received("rain until Sunday")[-2:])
    assert one == other and "Oslo" in one and "pirate" not in one


def test_messages(asker: Asker, hermes: ScriptedModel) -> None:
    """A thought ends with its budget, goes back with the history, and is not shown unasked."""
    long = "z" * 1500
    hermes.answers("weather in Oslo?", f"<think>{long}</think>\n\n{OSLO_CALL}", tokens_per_step=20)
    hermes.answers("rain until Sunday", THOUGHT + "Take an umbrella.")
    tools: dict[str, Any] = {"tools": [WEATHER_IN_MESSAGES]}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    asked = asker.message([QUESTION], thinking=thinking, **tools)
    assert asked.stop_reason == "tool_use"
    thought, call = asked.content
    assert thought.type == "thinking" and thought.signature
    assert thought.thinking == long[:1024]
    assert call.type == "tool_use" and (call.name, call.input) == ("get_weather", OSLO)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain until Sunday"}
    assistant = {"role": "assistant", "content": asked.content}
    history = [QUESTION, assistant, {"role": "user", "content": [result]}]
    (answer,) = asker.message(history, **tools).content
    assert answer.type == "text" and answer.text.strip() == "Take an umbrella."
    assert thought.thinking in hermes.received("rain until Sunday")[-1].prompt
    with pytest.raises(anthropic.APIError, match="grammar"):
        asker.message([REFUSED], tool_choice={"type": "any"}, **tools)


def test_many_at_once(asker: Asker, hermes: ScriptedModel) -> None:
    cities = [f"City {number}" for number in range(16)]
    for city in cities:
        hermes.answers(f"weather of {city}.", OSLO_CALL.replace("Oslo", city))

    def called(city: str) -> Any:
        answer = asker.chat([user(f"weather of {city}.")], tools=[WEATHER])
        (call,) = answer.choices[0].message.tool_calls or []
        return json.loads(call.function.arguments) if call.type == "function" else None

    with ThreadPoolExecutor(len(cities)) as pool:
        answers = list(pool.map(called, cities))
    assert answers == [{"city": city, "days": 3} for city in cities]


class Step(pydantic.BaseModel):
    explanation: str
    result: float


class Solution(pydantic.BaseModel):
    steps: list[Step]
    answer: float


GOOD = '{"steps": [{"explanation": "halve it", "result": 4}], "answer": 4}'


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
