"""The openai SDK's responses, whole and streamed, from a neuron that renders and parses."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import OSLO, OSLO_CALLS, Respond
from tests.live.sdk.asking import WEATHER_IN_RESPONSES as WEATHER
from tests.live.serving import wait_until


def test_text_and_a_conversation_by_previous_response_id(
    respond: Respond, hermes: ScriptedModel
) -> None:
    """Instructions are not carried over; everything else is."""
    hermes.answers("my name is Ada", "<think>\nQuietly.\n</think>\n\nHello, Ada.")
    hermes.answers("what is my name", "Ada.")
    first = respond(
        "my name is Ada",
        instructions="Speak like a pirate.",
        metadata={"run": "7"},
        reasoning={"effort": "high"},
    )
    thought, message = first.output
    assert (thought.type, message.type) == ("reasoning", "message")
    assert first.output_text == "Hello, Ada."
    assert (first.status, first.model, first.metadata) == ("completed", "hermes", {"run": "7"})
    received = hermes.received("my name is Ada")[-1]
    assert "pirate" in received.prompt
    assert first.usage is not None
    assert first.usage.input_tokens == received.num_prompt_tokens
    assert first.usage.output_tokens_details.reasoning_tokens > 5
    second = respond("what is my name", previous_response_id=first.id, max_output_tokens=1)
    assert second.output_text == "A"
    assert (second.status, second.previous_response_id) == ("incomplete", first.id)
    prompt = hermes.received("what is my name")[-1].prompt
    assert "my name is Ada" in prompt and "Hello, Ada." in prompt and "pirate" not in prompt


@pytest.mark.parametrize("family", OSLO_CALLS)
def test_a_call_and_its_result(
    respond: Respond, scripted_server: ScriptedServe, family: str
) -> None:
    model = scripted_server.models[family]
    text = f"weather of Oslo as items, {family}"
    model.answers(text, OSLO_CALLS[family])
    model.answers("hail and thunder", "Stay inside.")
    given: list[Any] = [{"role": "user", "content": text}]
    asked = respond(given, model=family, tools=[WEATHER])
    call = asked.output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", OSLO)
    assert asked.status == "completed"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "hail and thunder"}
    given += [*(item.to_dict() for item in asked.output), result]
    answer = respond(given, model=family, tools=[WEATHER])
    assert answer.output_text == "Stay inside."
    chained = respond([result], model=family, tools=[WEATHER], previous_response_id=asked.id)
    assert chained.output_text == "Stay inside."
    prompts = [one.prompt for one in model.received("hail and thunder")[-2:]]
    assert prompts[0] == prompts[1], "history sent or stored is the same history"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief.", "tools": [WEATHER]},
        {"reasoning": {"effort": "high"}, "text": {"format": {"type": "json_object"}}},
    ],
)
def test_counted_tokens_are_those_used(
    openai_client: openai.OpenAI, hermes: ScriptedModel, fields: dict[str, Any]
) -> None:
    hermes.answers("count this", '{"counted": true}')
    asked: Any = {"model": "hermes", "input": "count this: žluťoučký 日本"} | fields
    counted = openai_client.responses.input_tokens.count(**asked)
    usage = openai_client.responses.create(**asked).usage
    assert usage is not None and counted.input_tokens == usage.input_tokens


def test_encrypted_reasoning_without_storage(
    openai_client: openai.OpenAI, hermes: ScriptedModel
) -> None:
    """Clients that store nothing carry the thoughts themselves."""
    hermes.answers("carry it yourself", "<think>\nHeavy thoughts.\n</think>\n\nCarried.")
    hermes.answers("and what then", "Nothing.")
    responses: Any = openai_client.responses
    fields = {"model": "hermes", "store": False, "include": ["reasoning.encrypted_content"]}
    question = {"role": "user", "content": "carry it yourself"}
    first = responses.create(input=[question], reasoning={"summary": "auto"}, **fields)
    assert first.output[0].encrypted_content
    history = [question, *first.output, {"role": "user", "content": "and what then"}]
    second = responses.create(input=history, **fields)
    assert second.output_text == "Nothing."
    assert "Heavy thoughts." in hermes.received("and what then")[-1].prompt


def test_background_work_outlives_its_stream_and_is_cancelled(
    openai_client: openai.OpenAI, hermes: ScriptedModel, scripted_server: ScriptedServe
) -> None:
    """What it held is free again afterwards."""
    hermes.answers("count for ever", "on and on ", repeats=True)
    responses = openai_client.responses
    with responses.create(
        model="hermes", input="count for ever", background=True, stream=True
    ) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"

    def in_flight() -> int | None:
        """``None`` while the neuron's heartbeat is late."""
        replica = scripted_server.replica("hermes")
        return None if replica is None else int(replica["in_flight"])

    wait_until(in_flight, "it runs")
    assert responses.cancel(first.response.id).status == "cancelled"
    wait_until(lambda: in_flight() == 0, "it is gone")
    assert responses.retrieve(first.response.id).status == "cancelled"
