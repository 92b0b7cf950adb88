"""The anthropic SDK: content blocks both ways, thinking, tools, counts, errors, models."""

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
    hermes.answers("greet me", "Good morning.")
    message = converse(
        "greet me", system="Be polite.", metadata={"user_id": "u"}, extra_body={"top_k": 3}
    )
    assert [block.type for block in message.content] == ["text"]
    assert text_of(message) == "Good morning."
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.role, message.type, message.model) == ("assistant", "message", "hermes")
    assert message.id.startswith("msg_")
    received = hermes.received("greet me")[-1]
    assert received.params.top_k == 3
    assert "Be polite." in received.prompt
    assert prompt_tokens(message) == received.num_prompt_tokens
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


def test_an_alias_is_echoed(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("by another name", "The same.")
    message = converse("by another name", model=ALIAS)
    assert (text_of(message), message.model) == ("The same.", ALIAS)


def test_events_in_order(anthropic_client: anthropic.Anthropic, hermes: ScriptedModel) -> None:
    hermes.answers("think, write, call", f"<think>\nHm.\n</think>\n\nSo.\n{OSLO_CALLS['hermes']}")
    create: Any = anthropic_client.messages.create
    events = list(
        create(
            model="hermes",
            max_tokens=2000,
            messages=[{"role": "user", "content": "think, write, call"}],
            tools=[WEATHER],
            thinking=THINKING,
            stream=True,
        )
    )
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    blocks = [event for event in events if event.type.startswith("content_block")]
    assert [e.index for e in blocks] == sorted(e.index for e in blocks)
    starts = [e.content_block.type for e in blocks if e.type == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    for index in range(3):
        of_block = [e.type for e in blocks if e.index == index]
        assert of_block[0] == "content_block_start"
        assert of_block[-1] == "content_block_stop"
        assert set(of_block[1:-1]) == {"content_block_delta"}
    deltas = {
        index: {
            e.delta.type for e in blocks if e.index == index and e.type == "content_block_delta"
        }
        for index in range(3)
    }
    assert deltas == {
        0: {"thinking_delta", "signature_delta"},
        1: {"text_delta"},
        2: {"input_json_delta"},
    }
    assert events[0].message.usage.output_tokens >= 0
    (ended,) = [event for event in events if event.type == "message_delta"]
    assert ended.delta.stop_reason == "tool_use"
    assert ended.usage.output_tokens > 10


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
    hermes.answers("think it over", f"<think>\nFjords.\n</think>\n\n{OSLO_CALLS['hermes']}")
    hermes.answers("drizzle", "Wet.")
    question = {"role": "user", "content": "think it over"}
    asked = converse([question], tools=[WEATHER], thinking=THINKING)
    thought, call = asked.content
    assert thought.type == "thinking"
    assert "Fjords." in thought.thinking
    assert thought.signature
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "drizzle"}
    history = [
        question,
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": [result]},
    ]
    answer = converse(history, tools=[WEATHER], thinking=THINKING)
    assert text_of(answer) == "Wet."
    assert "Fjords." in hermes.received("drizzle")[-1].prompt


def test_thinking_is_not_shown_unasked(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("think in secret", "<think>\nSecret.\n</think>\n\nPublic.")
    for fields in ({}, {"thinking": {"type": "disabled"}}):
        message = converse("think in secret", **fields)
        assert [block.type for block in message.content] == ["text"]
        assert text_of(message).strip() == "Public."


def test_thinking_stays_within_its_budget(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("think at length", f"<think>{'z' * 1500}</think>Enough.", tokens_per_step=20)
    message = converse("think at length", thinking=THINKING)
    thought = message.content[0]
    assert thought.type == "thinking"
    assert thought.thinking == "z" * 1024
    assert text_of(message) == "Enough."


def test_stop_sequences(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("roman numerals", "I II III IV V")
    message = converse("roman numerals", stop_sequences=["XX", " IV"])
    assert text_of(message) == "I II III"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " IV")


def test_max_tokens(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("no end", "z", repeats=True)
    message = converse("no end", max_tokens=5)
    assert (text_of(message), message.stop_reason) == ("zzzzz", "max_tokens")
    assert message.usage.output_tokens == 5


def test_the_end_of_the_context(
    anthropic_client: anthropic.Anthropic, scripted_server: ScriptedServe
) -> None:
    """More max_tokens than there is room for is no error in this dialect."""
    model = scripted_server.models["llama3"]
    model.answers("to the very end", "z", repeats=True, tokens_per_step=100)
    with anthropic_client.messages.stream(
        model=model.name,
        max_tokens=64000,
        messages=[{"role": "user", "content": "to the very end"}],
    ) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "model_context_window_exceeded"
    assert prompt_tokens(message) + message.usage.output_tokens == 8192


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
    converse: Converse, hermes: ScriptedModel, fields: dict[str, Any]
) -> None:
    hermes.answers("count this", "Counted.")
    messages: Any = [{"role": "user", "content": "count this: žluťoučký 日本"}]
    counted = converse.client.messages.count_tokens(model="hermes", messages=messages, **fields)
    assert counted.input_tokens == prompt_tokens(converse(messages, **fields))


def test_cached_tokens(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("a prefix worth keeping", "Yes.")
    for _ in range(2):
        message = converse("a prefix worth keeping, as it is long enough for a block or two")
    assert (message.usage.cache_read_input_tokens or 0) >= 16


def test_tool_choice(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("call something", OSLO_CALLS["hermes"])
    hermes.answers("call nothing", "Nothing.")
    hermes.answers("call both", f"{OSLO_CALLS['hermes']}\n{OSLO_CALLS['hermes']}")
    tools: dict[str, Any] = {"tools": [WEATHER, CLOCK]}
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        assert converse("call something", tool_choice=choice, **tools).stop_reason == "tool_use"
        with pytest.raises(anthropic.APIError, match="grammar"):
            converse("call nothing", tool_choice=choice, **tools)
    with pytest.raises(anthropic.APIError, match="grammar"):
        converse("call something", tool_choice={"type": "tool", "name": "get_time"}, **tools)
    none = converse("call nothing", tool_choice={"type": "none"}, **tools)
    assert text_of(none) == "Nothing."
    one_at_a_time = {"type": "auto", "disable_parallel_tool_use": True}
    assert converse("call something", tool_choice=one_at_a_time, **tools).stop_reason == "tool_use"
    with pytest.raises(anthropic.APIError, match="grammar"):
        converse("call both", tool_choice=one_at_a_time, **tools)


def test_system_turns_are_merged(converse: Converse, hermes: ScriptedModel) -> None:
    hermes.answers("who speaks", "I do.")
    message = converse(
        [
            {"role": "user", "content": "hello"},
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "who speaks"},
        ],
        system=[{"type": "text", "text": "Be brief."}],
    )
    assert text_of(message) == "I do."
    system = hermes.received("who speaks")[-1].prompt.partition("<|im_end|>")[0]
    assert "Be brief." in system
    assert "Be kind." in system


def test_images_are_refused(converse: Converse) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    with pytest.raises(anthropic.BadRequestError) as refusal:
        converse([{"role": "user", "content": [{"type": "image", "source": source}]}])
    assert refusal.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_errors_have_the_shape_of_that_api(converse: Converse) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        converse("hello", model="no-such-model")
    body: Any = missing.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    assert "no-such-model" in body["error"]["message"]
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        converse("hello", extra_body={"max_tokens": "many"})


def test_a_stream_that_breaks_reports_it(converse: Converse) -> None:
    with pytest.raises(anthropic.APIStatusError, match="no rule for the prompt"):
        converse("nobody wrote a message to this")


def test_models(anthropic_client: anthropic.Anthropic, scripted_server: ScriptedServe) -> None:
    models = list(anthropic_client.models.list())
    assert {model.id for model in models} == {*scripted_server.models, ALIAS}
    assert {model.type for model in models} == {"model"}
    assert all(model.display_name and model.created_at.year > 2000 for model in models)
    assert anthropic_client.models.retrieve("hermes").id == "hermes"
