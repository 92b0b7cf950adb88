"""The openai SDK's responses: items both ways, stored answers, background work, named events."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import OSLO, OSLO_CALLS, Respond
from tests.live.sdk.asking import WEATHER_IN_RESPONSES as WEATHER
from tests.live.sdk.test_structured_output import GOOD, Solution


def test_text(respond: Respond, hermes: ScriptedModel) -> None:
    hermes.answers("a haiku, please", "An old silent pond.")
    response = respond("a haiku, please", instructions="Be a poet.", metadata={"run": "7"})
    assert response.output_text == "An old silent pond."
    assert response.status == "completed"
    assert response.id.startswith("resp_")
    assert response.model == "hermes"
    assert response.metadata == {"run": "7"}
    received = hermes.received("a haiku, please")[-1]
    assert "Be a poet." in received.prompt
    usage = response.usage
    assert usage is not None
    assert usage.input_tokens == received.num_prompt_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert usage.input_tokens_details.cached_tokens >= 0


def test_items_as_input(respond: Respond, hermes: ScriptedModel) -> None:
    hermes.answers("and now in prose", "A pond, old and silent.")
    response = respond(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "a haiku"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "An old pond."}]},
            {"type": "message", "role": "user", "content": "and now in prose"},
        ]
    )
    assert response.output_text == "A pond, old and silent."
    prompt = hermes.received("and now in prose")[-1].prompt
    assert [text in prompt for text in ("Be brief.", "a haiku", "An old pond.")] == [True] * 3


def test_events_in_order(openai_client: openai.OpenAI, hermes: ScriptedModel) -> None:
    hermes.answers("think aloud", "<think>\nLet me see.\n</think>\n\nSeen.")
    events = list(openai_client.responses.create(model="hermes", input="think aloud", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    folded = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    assert folded[:2] == ["response.created", "response.in_progress"]
    assert folded[2] == "response.output_item.added"
    assert [kind for kind in folded if "reasoning" in kind]
    assert folded[-7:] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert kinds.count("response.output_item.added") == 2
    assert kinds.count("response.output_item.done") == 2
    final = events[-1]
    assert final.type == "response.completed"
    assert [item.type for item in final.response.output] == ["reasoning", "message"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.response.output_text == "Seen."


def test_reasoning_is_shown(respond: Respond, hermes: ScriptedModel) -> None:
    hermes.answers("think and answer", "<think>\nQuietly.\n</think>\n\nAnswered.")
    response = respond("think and answer", reasoning={"effort": "high"})
    thought, message = response.output
    assert thought.type == "reasoning"
    answer = [part.text for part in thought.content or []]
    assert "Quietly." in "".join(answer or [part.text for part in thought.summary])
    assert message.type == "message"
    assert response.output_text == "Answered."
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 5
    respond("think and answer", reasoning={"effort": "none"})
    prompt = hermes.received("think and answer")[-1].prompt
    assert prompt.rstrip().endswith("<think>\n\n</think>")


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


@pytest.mark.parametrize(("tool_choice", "least_deltas"), [("auto", 1), ("required", 3)])
def test_call_events(
    openai_client: openai.OpenAI, hermes: ScriptedModel, tool_choice: str, least_deltas: int
) -> None:
    """Arguments come whole, and in pieces where a grammar holds the answer to a call."""
    question = f"call in events, {tool_choice}"
    hermes.answers(question, OSLO_CALLS["hermes"])
    create: Any = openai_client.responses.create
    asked = {"model": "hermes", "input": question, "tools": [WEATHER]}
    events = list(create(**asked, tool_choice=tool_choice, stream=True))
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments
    assert len(deltas) >= least_deltas
    assert json.loads(done.arguments) == OSLO


def test_tool_choice(respond: Respond, hermes: ScriptedModel) -> None:
    hermes.answers("call it you must", OSLO_CALLS["hermes"])
    named = {"type": "function", "name": "get_weather"}
    for choice in ("required", named):
        response = respond("call it you must", tools=[WEATHER], tool_choice=choice)
        assert response.output[-1].type == "function_call"
        assert hermes.received("call it you must")[-1].params.grammar is not None


def test_the_sdk_parses_its_own_classes(
    openai_client: openai.OpenAI, hermes: ScriptedModel
) -> None:
    hermes.answers("solve it as a response", GOOD)
    parsed = openai_client.responses.parse(
        model="hermes", input="solve it as a response", text_format=Solution
    )
    assert parsed.output_parsed == Solution.model_validate_json(GOOD)
    assert hermes.received("solve it as a response")[-1].params.grammar is not None


def test_cut_off(respond: Respond, hermes: ScriptedModel) -> None:
    hermes.answers("a long story", "Once upon a time", repeats=True)
    response = respond("a long story", max_output_tokens=20)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text.startswith("Once upon")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief.", "tools": [WEATHER]},
        {"reasoning": {"effort": "high"}, "text": {"format": {"type": "json_object"}}},
    ],
)
def test_counted_tokens_are_those_used(
    respond: Respond, openai_client: openai.OpenAI, hermes: ScriptedModel, fields: dict[str, Any]
) -> None:
    hermes.answers("count this", '{"counted": true}')
    question = "count this: žluťoučký 日本"
    counted = openai_client.responses.input_tokens.count(model="hermes", input=question, **fields)
    usage = respond(question, **fields).usage
    assert usage is not None and counted.input_tokens == usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncation": "some"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools[0]"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_refused_by_name(respond: Respond, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        respond("anything", **fields)
    assert (refusal.value.param or "").startswith(param)
    if "tools" in fields:
        assert fields["tools"][0]["type"] in refusal.value.message


def test_a_stream_that_breaks_reports_it(openai_client: openai.OpenAI) -> None:
    stream = openai_client.responses.create(
        model="hermes", input="nobody wrote a response to this", stream=True
    )
    with pytest.raises(openai.APIError, match="no rule"):
        for event in stream:
            if event.type == "response.failed":
                error = event.response.error
                raise openai.APIError(error.message if error else "", None, body=None)  # type: ignore[arg-type]
