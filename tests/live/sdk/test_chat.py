"""The openai SDK's chat and text completions, whole and streamed, from a neuron that renders,
parses and enforces. The details of each are in the tests of ``inference.text`` and of
``inference.wire``."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import CLOCK, OSLO, OSLO_CALLS, WEATHER, Ask

TOOLS = [WEATHER, CLOCK]
THOUGHT = "<think>\nIt is 6 times 7.\n</think>\n\nIt is 42."
NO_THINKING = "<think>\n\n</think>"
"""What the template puts into the prompt when thinking is off."""


def reasoning(answer: ChatCompletion) -> str | None:
    message = answer.choices[0].message
    found: str | None = (message.model_extra or {}).get("reasoning_content")
    return found


def calls(answer: ChatCompletion) -> list[tuple[str, Any]]:
    found = answer.choices[0].message.tool_calls or []
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in found
        if call.type == "function"
    ]


def test_several_choices(ask: Ask, hermes: ScriptedModel) -> None:
    """Each with its own text and seed; the prompt counts once."""
    hermes.answers("name three fruits", "apple", "banana split", "cherry")
    answer = ask("name three fruits", n=3, seed=11)
    texts = {choice.index: choice.message.content for choice in answer.choices}
    assert texts == {0: "apple", 1: "banana split", 2: "cherry"}
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    received = hermes.received("name three fruits")[-3:]
    assert len({one.params.seed for one in received}) == 3
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == received[0].num_prompt_tokens


def test_several_prompts(openai_client: openai.OpenAI, hermes: ScriptedModel) -> None:
    """Choice ``prompt * n + i`` is the i-th answer to a prompt, behind its echo."""
    hermes.answers("one fish", " swims", " sleeps")
    hermes.answers("two fish", " dance", " sing")
    fields: Any = {"model": "hermes", "prompt": ["one fish", "two fish"], "n": 2, "echo": True}
    texts = dict.fromkeys(range(4), "")
    for chunk in openai_client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    wanted = ["one fish swims", "one fish sleeps", "two fish dance", "two fish sing"]
    assert list(texts.values()) == wanted
    answer = openai_client.completions.create(**fields)
    assert [choice.text for choice in answer.choices] == wanted


def test_logprobs(ask: Ask, hermes: ScriptedModel) -> None:
    """Each token here is a byte of the wide characters."""
    hermes.answers("how likely", "weather in 日本 🦊")
    choice = ask("how likely", logprobs=True, top_logprobs=2).choices[0]
    assert choice.message.content == "weather in 日本 🦊"
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == "weather in 日本 🦊"
    assert {len(token.top_logprobs) for token in tokens} == {2}
    assert {token.logprob for token in tokens} == {-0.25}


def test_usage(ask: Ask, hermes: ScriptedModel) -> None:
    """The second time the prompt's whole blocks come from the prefix cache."""
    hermes.answers("a prompt to ask twice", "1234")
    for _ in range(2):
        usage = ask("a prompt to ask twice, which is long enough for a block").usage
    received = hermes.received("a prompt to ask twice")[-1]
    assert usage is not None
    assert usage.prompt_tokens == received.num_prompt_tokens
    assert usage.completion_tokens == 5, "four and the end token"
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


def test_what_was_asked_for_reaches_the_engine(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("many knobs", "turned on and off", repeats=True)
    answer = ask(
        "many knobs",
        temperature=0.7,
        top_p=0.9,
        seed=5,
        stop=["zz", " off"],
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        logit_bias={"17": -3},
        max_completion_tokens=77,
        user="someone",
        metadata={"run": "1"},
        extra_body={
            "top_k": 40,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "min_tokens": 2,
            "stop_token_ids": [9],
        },
    )
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("turned on and", "stop")
    params = hermes.received("many knobs")[-1].params
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.9, 40)
    assert (params.min_p, params.repetition_penalty) == (0.05, 1.1)
    assert (params.presence_penalty, params.frequency_penalty) == (0.25, -0.5)
    assert (params.seed, params.max_tokens, params.min_tokens) == (5, 77, 2)
    assert params.logit_bias == {17: -3.0}
    assert 9 in params.stop_token_ids


def test_thinking_is_hidden_unless_it_is_asked_for(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("six by seven", THOUGHT)
    hidden = ask("six by seven")
    assert (hidden.choices[0].message.content or "").strip() == "It is 42."
    assert reasoning(hidden) is None
    assert hermes.received("six by seven")[-1].prompt.rstrip().endswith(NO_THINKING)
    assert hidden.usage is not None and hidden.usage.completion_tokens_details is not None
    num_thoughts = hidden.usage.completion_tokens_details.reasoning_tokens or 0
    assert 10 < num_thoughts < hidden.usage.completion_tokens
    shown = ask("six by seven", extra_body={"include_reasoning": True})
    assert (shown.choices[0].message.content or "").strip() == "It is 42."
    assert (reasoning(shown) or "").strip() == "It is 6 times 7."
    assert NO_THINKING not in hermes.received("six by seven")[-1].prompt


def test_thinking_before_a_call(ask: Ask, hermes: ScriptedModel) -> None:
    """A call in the thoughts is a thought; the thoughts go back with the history. The grammar of a
    required call holds from the end of the block on."""
    thought = f"<think>\nShould I {OSLO_CALLS['hermes']}?\n</think>\n"
    hermes.answers("think, then call", thought + OSLO_CALLS["hermes"])
    hermes.answers("sunny all week", "Sunny.")
    question = {"role": "user", "content": "think, then call"}
    asked = ask(
        messages=[question],
        tools=[WEATHER],
        tool_choice="required",
        extra_body={"include_reasoning": True},
    )
    assert "Should I" in (reasoning(asked) or "")
    assert calls(asked) == [("get_weather", OSLO)]
    message = asked.choices[0].message
    (call,) = message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny all week"}
    reported = ask(messages=[question, message, result], tools=[WEATHER])
    assert reported.choices[0].message.content == "Sunny."
    assert "Should I" in hermes.received("sunny all week")[-1].prompt


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
    prompt = model.received("rain until Sunday")[-1].prompt
    assert "Oslo" in prompt.partition(str(question["content"]))[2], "the call is in the history"


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
    choices = [choice for chunk in stream for choice in chunk.choices]
    deltas = [call for choice in choices for call in choice.delta.tool_calls or []]
    assert deltas[0].id.startswith("call_")
    assert (deltas[0].type, deltas[0].function.name) == ("function", "get_weather")
    assert all(delta.index == 0 for delta in deltas)
    assert all(delta.id is None and delta.function.name is None for delta in deltas[1:])
    pieces = [delta.function.arguments or "" for delta in deltas]
    assert json.loads("".join(pieces)) == OSLO
    assert len([piece for piece in pieces if piece]) > 2


def test_many_at_once(ask: Ask, hermes: ScriptedModel) -> None:
    """Each client gets its own call, whole, beside any other clients."""
    cities = [f"City {number}" for number in range(16)]
    for city in cities:
        hermes.answers(f"weather of {city}.", OSLO_CALLS["hermes"].replace("Oslo", city))
    with ThreadPoolExecutor(len(cities)) as pool:
        answers = pool.map(lambda city: calls(ask(f"weather of {city}.", tools=TOOLS)), cities)
        assert list(answers) == [[("get_weather", {"city": city, "days": 3})] for city in cities]
