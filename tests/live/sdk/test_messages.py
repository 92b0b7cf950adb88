"""The anthropic SDK, whole and streamed, from a neuron that renders, parses and enforces."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ALIAS, ScriptedServe
from tests.live.sdk.asking import OSLO, OSLO_CALLS, Converse
from tests.live.sdk.asking import WEATHER_IN_MESSAGES as WEATHER

CLOCK = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
THINKING = {"type": "enabled", "budget_tokens": 1024}


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def prompt_tokens(message: Message) -> int:
    usage = message.usage
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_text(converse: Converse, hermes: ScriptedModel) -> None:
    """By an alias, which is echoed; the second time a part of the prompt is cached."""
    hermes.answers("greet me", "Good morning. And more")
    fields: Any = {"stop_sequences": ["XX", " And"], "metadata": {"user_id": "u"}}
    for _ in range(2):
        message = converse(
            "greet me", model=ALIAS, system="Be polite.", extra_body={"top_k": 3}, **fields
        )
    assert text_of(message) == "Good morning."
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " And")
    assert (message.role, message.type, message.model) == ("assistant", "message", ALIAS)
    received = hermes.received("greet me")[-1]
    assert received.params.top_k == 3
    assert "Be polite." in received.prompt
    assert prompt_tokens(message) == received.num_prompt_tokens
    assert (message.usage.cache_read_input_tokens or 0) >= 16
    assert message.usage.output_tokens > 0


def test_the_answer_continues_from_its_start(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("a tale to continue", " was a king.")
    message = converse(
        [
            {"role": "user", "content": "a tale to continue"},
            {"role": "assistant", "content": "Once there"},
        ]
    )
    assert text_of(message) == " was a king."
    prompt = hermes.received("a tale to continue")[-1].prompt
    assert prompt.endswith("</think>\n\nOnce there")
    assert prompt.count("<|im_start|>assistant") == 1


@pytest.mark.parametrize("family", OSLO_CALLS)
def test_a_call_and_its_result(
    converse: Converse, scripted_server: ScriptedServe, family: str
) -> None:
    model = scripted_server.models[family]
    text = f"weather of Oslo in blocks, {family}"
    model.answers(text, OSLO_CALLS[family])
    model.answers("fog all day", "Drive slowly.")
    question = {"role": "user", "content": [{"type": "text", "text": text}]}
    asked = converse([question], model=family, tools=[WEATHER, CLOCK])
    assert asked.stop_reason == "tool_use"
    call = asked.content[-1]
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", OSLO)
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "fog all day"}],
    }
    history = [
        question,
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    answer = converse(history, model=family, tools=[WEATHER, CLOCK])
    assert (text_of(answer), answer.stop_reason) == ("Drive slowly.", "end_turn")
    assert "So?" in model.received("fog all day")[-1].prompt


def test_thinking_goes_there_and_back(converse: Converse, hermes: ScriptedModel) -> None:
    """Within its budget, and not shown unasked."""
    thoughts = "<think>{}</think>\n\n"
    hermes.answers(
        "think it over", thoughts.format("z" * 1500) + OSLO_CALLS["hermes"], tokens_per_step=20
    )
    hermes.answers("drizzle", thoughts.format("Fjords.") + "Wet.")
    question = {"role": "user", "content": "think it over"}
    asked = converse([question], tools=[WEATHER], thinking=THINKING)
    thought, call = asked.content
    assert thought.type == "thinking"
    assert thought.thinking == "z" * 1024
    assert thought.signature
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "drizzle"}
    history = [
        question,
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": [result]},
    ]
    answer = converse(history, tools=[WEATHER])
    assert [block.type for block in answer.content] == ["text"]
    assert text_of(answer).strip() == "Wet."
    assert thought.thinking in hermes.received("drizzle")[-1].prompt


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"tools": [WEATHER, CLOCK], "tool_choice": {"type": "auto"}},
        {"thinking": THINKING},
    ],
)
def test_counted_tokens_are_those_used(
    anthropic_client: anthropic.Anthropic, hermes: ScriptedModel, fields: dict[str, Any]
) -> None:
    hermes.answers("count this", "Counted.")
    converse = Converse(anthropic_client, streams=False)
    messages: Any = [{"role": "user", "content": "count this: žluťoučký 日本"}]
    counted = anthropic_client.messages.count_tokens(model="hermes", messages=messages, **fields)
    assert counted.input_tokens == prompt_tokens(converse(messages, **fields))


def test_tool_choice(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("call something", OSLO_CALLS["hermes"])
    hermes.answers("call nothing", "Nothing.")
    hermes.answers("call both", f"{OSLO_CALLS['hermes']}\n{OSLO_CALLS['hermes']}")
    tools: dict[str, Any] = {"tools": [WEATHER, CLOCK]}
    one_at_a_time = {"type": "auto", "disable_parallel_tool_use": True}
    weather, clock = ({"type": "tool", "name": name} for name in ("get_weather", "get_time"))
    for choice in ({"type": "any"}, weather, one_at_a_time):
        assert converse("call something", tool_choice=choice, **tools).stop_reason == "tool_use"
    forbidden: list[tuple[str, Any]] = [
        ("call nothing", {"type": "any"}),
        ("call nothing", weather),
        ("call something", clock),
        ("call both", one_at_a_time),
    ]
    for question, choice in forbidden:
        with pytest.raises(anthropic.APIError, match="grammar"):
            converse(question, tool_choice=choice, **tools)
