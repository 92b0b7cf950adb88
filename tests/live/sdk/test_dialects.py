"""Each dialect by its SDK, streamed and folded by it, from a neuron that renders and
parses: a thought, a call that is required, and the tool's result. Whole answers are in
``test_one_serve``; the details of each in the tests of ``inference.text``, ``inference.wire`` and
``inference.gateway``."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from anthropic.types import Message
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.live.scripted.model import OSLO, OSLO_CALL, SCHEMA, ScriptedModel

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
THOUGHT = f"<think>\nShould I {OSLO_CALL}?\n</think>\n\n"
"""A call in the thoughts is a thought."""


@pytest.fixture
def hermes(hermes: ScriptedModel) -> ScriptedModel:
    hermes.answers("weather in Oslo?", THOUGHT + OSLO_CALL)
    hermes.answers("rain until Sunday", "Take an umbrella.")
    return hermes


QUESTION = {"role": "user", "content": "what is the weather in Oslo?"}


def test_chat_completions(openai_client: Any, hermes: ScriptedModel) -> None:
    def asked(*messages: Any, **fields: Any) -> ChatCompletion:
        state = ChatCompletionStreamState()
        body = {"model": "hermes", "messages": messages, "tools": [WEATHER], "stream": True}
        body |= {"stream_options": {"include_usage": True}}
        for chunk in openai_client.chat.completions.create(**body, **fields):
            state.handle_chunk(chunk)
        return state.get_final_completion()

    shown: dict[str, Any] = {"extra_body": {"include_reasoning": True}}
    (choice,) = asked(QUESTION, tool_choice="required", **shown).choices
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    assert "Should I" in (choice.message.model_extra or {})["reasoning_content"]
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == OSLO
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain until Sunday"}
    answer = asked(QUESTION, choice.message, result, **shown)
    assert answer.choices[0].message.content == "Take an umbrella."
    assert hermes.received("weather in Oslo?")[0].params.grammar is not None
    received = hermes.received("rain until Sunday")[-1]
    assert "Should I" in received.prompt
    assert answer.usage is not None and answer.usage.prompt_tokens == received.num_prompt_tokens


def test_responses(openai_client: Any, hermes: ScriptedModel) -> None:
    """History sent or stored is the same history; instructions are not carried over."""

    def asked(given: Any, **fields: Any) -> Response:
        tools = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
        body = {"model": "hermes", "input": given, "tools": tools, "stream": True}
        *_, last = openai_client.responses.create(**body, **fields)
        answer: Response = last.response
        assert answer.status == "completed"
        return answer

    thinks: dict[str, Any] = {"reasoning": {"effort": "high"}, "tool_choice": "required"}
    first = asked([QUESTION], instructions="Like a pirate.", **thinks)
    assert "pirate" in hermes.received("weather in Oslo?")[-1].prompt
    thought, call = first.output
    assert (thought.type, call.type) == ("reasoning", "function_call")
    assert (call.name, json.loads(call.arguments)) == ("get_weather", OSLO)
    result = {"type": "function_call_output", "call_id": call.call_id}
    result["output"] = "rain until Sunday"
    sent = [QUESTION, *(item.to_dict() for item in first.output), result]
    for given, fields in ((sent, {}), ([result], {"previous_response_id": first.id})):
        assert asked(given, **fields).output_text == "Take an umbrella."
    one, other = (each.prompt for each in hermes.received("rain until Sunday")[-2:])
    assert one == other and "Oslo" in one and "pirate" not in one


def test_messages(anthropic_client: Any, hermes: ScriptedModel) -> None:
    """A thought ends with its budget, goes back with the history, and is not shown unasked."""

    def asked(*messages: Any, **fields: Any) -> Message:
        tools = [{"name": "get_weather", "input_schema": SCHEMA}]
        body = {"model": "hermes", "max_tokens": 2000, "messages": messages, "tools": tools}
        with anthropic_client.messages.stream(**body, **fields) as events:
            answer: Message = events.get_final_message()
        return answer

    long = "z" * 1500
    hermes.answers("weather in Oslo?", f"<think>{long}</think>\n\n{OSLO_CALL}", tokens_per_step=20)
    hermes.answers("rain until Sunday", THOUGHT + "Take an umbrella.")
    first = asked(QUESTION, thinking={"type": "enabled", "budget_tokens": 1024})
    assert first.stop_reason == "tool_use"
    thought, call = first.content
    assert thought.type == "thinking" and thought.signature
    assert thought.thinking == long[:1024]
    assert call.type == "tool_use" and (call.name, call.input) == ("get_weather", OSLO)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain until Sunday"}
    said = {"role": "assistant", "content": first.content}
    (answer,) = asked(QUESTION, said, {"role": "user", "content": [result]}).content
    assert answer.type == "text" and answer.text.strip() == "Take an umbrella."
    assert thought.thinking in hermes.received("rain until Sunday")[-1].prompt


class Solution(pydantic.BaseModel):
    steps: list[str]
    answer: float


def test_the_sdks_parse_their_own_classes(
    openai_client: Any, anthropic_client: Any, hermes: ScriptedModel
) -> None:
    hermes.answers("solve it", '{"steps": ["halve it"], "answer": 4}')
    fields: Any = {"model": "hermes", "messages": [{"role": "user", "content": "solve it"}]}
    completions = openai_client.chat.completions
    with completions.stream(**fields, response_format=Solution) as stream:
        streamed = stream.get_final_completion()
    chats = (completions.parse(**fields, response_format=Solution), streamed)
    response = openai_client.responses.parse(model="hermes", input="solve it", text_format=Solution)
    message = anthropic_client.messages.parse(**fields, max_tokens=500, output_format=Solution)
    parsed = [chat.choices[0].message.parsed for chat in chats]
    wanted = Solution(steps=["halve it"], answer=4)
    assert [*parsed, response.output_parsed, message.parsed_output] == [wanted] * 4
    assert all(one.params.grammar is not None for one in hermes.received("solve it"))
