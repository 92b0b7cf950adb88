"""Tool calls through the openai SDK: every family, streamed and whole, and back again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import CLOCK, CLOCK_CALL, OSLO, OSLO_CALLS, WEATHER, Ask

TOOLS = [WEATHER, CLOCK]


def calls(answer: ChatCompletion, index: int = 0) -> list[tuple[str, Any]]:
    found = answer.choices[index].message.tool_calls or []
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in found
        if call.type == "function"
    ]


@pytest.mark.parametrize("family", OSLO_CALLS)
def test_a_call_and_its_result(ask: Ask, scripted_server: ScriptedServe, family: str) -> None:
    """The SDK's own message object goes back as it came; the template writes it out again."""
    model = scripted_server.models[family]
    question = {"role": "user", "content": f"what is the weather in Oslo, {family}?"}
    model.answers(str(question["content"]), OSLO_CALLS[family])
    model.answers("rain until Sunday", "Take an umbrella.")

    asked = ask(model=family, messages=[question], tools=TOOLS)
    choice = asked.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    assert calls(asked) == [("get_weather", OSLO)]
    (call,) = choice.message.tool_calls or []
    assert call.id.startswith("call_")

    result = {"role": "tool", "tool_call_id": call.id, "content": "rain until Sunday"}
    history = [question, choice.message, result]
    reply = ask(model=family, messages=history, tools=TOOLS).choices[0]
    assert (reply.message.content, reply.finish_reason) == ("Take an umbrella.", "stop")
    assert reply.message.tool_calls is None
    prompt = model.received("rain until Sunday")[-1].prompt
    assert "Oslo" in prompt.partition(str(question["content"]))[2], "the call is in the history"


@pytest.mark.parametrize(
    ("family", "written"),
    [
        ("hermes", OSLO_CALLS["hermes"].replace("\n", "")),
        ("qwen-coder", OSLO_CALLS["qwen-coder"].removeprefix("<tool_call>\n")),
        ("llama3", "<|python_tag|>" + OSLO_CALLS["llama3"]),
        ("llama3", '[get_weather(city="Oslo", days=3)]'),
        ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 3}'),
    ],
)
def test_other_ways_to_write_it(
    ask: Ask, scripted_server: ScriptedServe, family: str, written: str
) -> None:
    scripted_server.models[family].answers("in its own way", written)
    answer = ask("in its own way", model=family, tools=TOOLS)
    assert calls(answer) == [("get_weather", OSLO)]
    assert not answer.choices[0].message.content


def test_a_value_that_does_not_fit_its_schema_is_kept(
    ask: Ask, scripted_server: ScriptedServe
) -> None:
    """XML has no types: a number where one is wanted and can be read, else the text as it is."""
    model = scripted_server.models["qwen-coder"]
    model.answers("how soon", OSLO_CALLS["qwen-coder"].replace("\n3\n", "\nsoon\n"))
    answer = ask("how soon", model=model.name, tools=TOOLS)
    assert calls(answer) == [("get_weather", {"city": "Oslo", "days": "soon"})]


def test_text_around_calls(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("look both up", f"I will look.\n{OSLO_CALLS['hermes']}\n{CLOCK_CALL}")
    answer = ask("look both up", tools=TOOLS)
    assert (answer.choices[0].message.content or "").strip() == "I will look."
    assert calls(answer) == [("get_weather", OSLO), ("get_time", {"zone": "CET"})]
    ids = [call.id for call in answer.choices[0].message.tool_calls or []]
    assert len(set(ids)) == 2


def test_arguments_stream_while_they_are_written(
    openai_client: openai.OpenAI, hermes: ScriptedModel
) -> None:
    """Where a grammar holds the answer to calls: the name first, then several pieces, all with the
    call's index."""
    hermes.answers("stream the call", OSLO_CALLS["hermes"])
    stream: Any = openai_client.chat.completions.create(
        model="hermes",
        messages=[{"role": "user", "content": "stream the call"}],
        tools=TOOLS,  # type: ignore[arg-type]
        tool_choice="required",
        stream=True,
    )
    deltas = [
        call
        for chunk in stream
        for choice in chunk.choices
        for call in choice.delta.tool_calls or []
    ]
    assert deltas[0].id.startswith("call_")
    assert (deltas[0].type, deltas[0].function.name) == ("function", "get_weather")
    assert all(delta.index == 0 for delta in deltas)
    assert all(delta.id is None and delta.function.name is None for delta in deltas[1:])
    pieces = [delta.function.arguments or "" for delta in deltas]
    assert json.loads("".join(pieces)) == OSLO
    assert len([piece for piece in pieces if piece]) > 2


def test_what_is_not_a_call_is_text(ask: Ask, hermes: ScriptedModel) -> None:
    written = "<tool_call>\nget_weather of Oslo, please\n</tool_call>"
    hermes.answers("call it badly", written)
    choice = ask("call it badly", tools=TOOLS).choices[0]
    assert (choice.message.content or "").strip() == written
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_a_broken_call_is_text_whole(ask: Ask, hermes: ScriptedModel) -> None:
    broken = '{"name":"get_weather","arguments":{"city":"Oslo","days": three}}'
    written = f"<tool_call>\n{broken}\n</tool_call>"
    hermes.answers("call it half", written)
    choice = ask("call it half", tools=TOOLS).choices[0]
    assert (choice.message.content or "").strip() == written
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_repairs(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("too many braces", OSLO_CALLS["hermes"].replace("}}", "}}}}"))
    assert calls(ask("too many braces", tools=TOOLS)) == [("get_weather", OSLO)]
    nested = '{"arguments": {"name": "get_weather", "city": "Oslo", "days": 3}}'
    hermes.answers("name inside", f"<tool_call>\n{nested}\n</tool_call>")
    assert calls(ask("name inside", tools=TOOLS)) == [("get_weather", OSLO)]


def test_many_at_once(ask: Ask, hermes: ScriptedModel) -> None:
    """Each client gets its own call, whole, beside any other clients."""
    cities = [f"City {number}" for number in range(16)]
    for city in cities:
        hermes.answers(f"weather of {city}.", OSLO_CALLS["hermes"].replace("Oslo", city))

    def asked(city: str) -> list[tuple[str, Any]]:
        return calls(ask(f"weather of {city}.", tools=TOOLS))

    with ThreadPoolExecutor(len(cities)) as pool:
        answers = list(pool.map(asked, cities))
    assert answers == [[("get_weather", {"city": city, "days": 3})] for city in cities]


def test_each_choice_calls_for_itself(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("call twice over", OSLO_CALLS["hermes"], "No, thanks.")
    answer = ask("call twice over", tools=TOOLS, n=2)
    assert calls(answer, 0) == [("get_weather", OSLO)]
    assert answer.choices[1].message.content == "No, thanks."
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls", "stop"]


@pytest.mark.parametrize("family", OSLO_CALLS)
def test_required_calls_are_enforced(ask: Ask, scripted_server: ScriptedServe, family: str) -> None:
    """The scripted engine fails where the grammar forbids what the script writes."""
    model = scripted_server.models[family]
    model.answers("you must call", OSLO_CALLS[family])
    model.answers("you will not call", "No.")
    asked = ask("you must call", model=family, tools=TOOLS, tool_choice="required")
    assert calls(asked) == [("get_weather", OSLO)]
    assert model.received("you must call")[-1].params.grammar is not None
    with pytest.raises(openai.APIError, match="grammar"):
        ask("you will not call", model=family, tools=TOOLS, tool_choice="required")


def test_a_named_function_is_enforced(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("call the weather", OSLO_CALLS["hermes"])
    hermes.answers("call the clock", CLOCK_CALL)
    weather = {"type": "function", "function": {"name": "get_weather"}}
    asked = ask("call the weather", tools=TOOLS, tool_choice=weather)
    assert calls(asked) == [("get_weather", OSLO)]
    assert asked.choices[0].finish_reason in ("tool_calls", "stop")
    with pytest.raises(openai.APIError, match="grammar"):
        ask("call the clock", tools=TOOLS, tool_choice=weather)


def test_one_call_at_a_time(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("only one call", OSLO_CALLS["hermes"])
    hermes.answers("one call too many", f"{OSLO_CALLS['hermes']}\n{CLOCK_CALL}")
    hermes.answers("one call or none", "None.")
    one: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False}
    assert calls(ask("only one call", **one)) == [("get_weather", OSLO)]
    assert ask("one call or none", **one).choices[0].message.content == "None."
    with pytest.raises(openai.APIError, match="grammar"):
        ask("one call too many", **one)


def test_tool_choice_none(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("do not call", "As you desired.")
    choice = ask("do not call", tools=TOOLS, tool_choice="none").choices[0]
    assert choice.message.content == "As you desired."
    assert choice.message.tool_calls is None


def test_strict_tools_are_enforced(ask: Ask, hermes: ScriptedModel) -> None:
    schema = WEATHER["function"]["parameters"] | {  # type: ignore[index]
        "additionalProperties": False,
        "required": ["city", "days"],
    }
    strict = {
        "type": "function",
        "function": {"name": "get_weather", "strict": True, "parameters": schema},
    }
    hermes.answers("a strict call", OSLO_CALLS["hermes"])
    hermes.answers("a loose call", OSLO_CALLS["hermes"].replace("3", '"three"'))
    hermes.answers("no call at all", "Nothing to call.")
    assert calls(ask("a strict call", tools=[strict])) == [("get_weather", OSLO)]
    assert ask("no call at all", tools=[strict]).choices[0].message.content == "Nothing to call."
    with pytest.raises(openai.APIError, match="grammar"):
        ask("a loose call", tools=[strict])


def test_a_template_that_refuses(ask: Ask) -> None:
    """This template takes one call a turn; the client gets its error, in the template's words."""
    function = {"name": "get_time", "arguments": "{}"}
    call: dict[str, Any] = {"id": "call_1", "type": "function", "function": function}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call, call | {"id": "call_2"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
    ]
    with pytest.raises(openai.UnprocessableEntityError, match="one function at a time") as refusal:
        ask(model="llama3", messages=history, tools=TOOLS)
    assert refusal.value.code == "template_render_failed"
