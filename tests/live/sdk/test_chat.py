"""The openai SDK's chat completions: choices, logprobs, stops, usage, what the engine is asked."""

from __future__ import annotations

import openai
import pytest

from tests.inference.image_files import data_uri, png
from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import Ask


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


def test_choices_come_interleaved(openai_client: openai.OpenAI, hermes: ScriptedModel) -> None:
    hermes.answers("two at a time", "aaaa", "bbbb")
    stream = openai_client.chat.completions.create(
        model="hermes",
        messages=[{"role": "user", "content": "two at a time"}],
        n=2,
        stream=True,
    )
    texts = {0: "", 1: ""}
    ends = {}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == {0: "aaaa", 1: "bbbb"}
    assert ends == {0: "stop", 1: "stop"}


def test_logprobs(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("how likely", "weather in 日本")
    choice = ask("how likely", logprobs=True, top_logprobs=2).choices[0]
    assert choice.message.content == "weather in 日本"
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == "weather in 日本"
    assert {len(token.top_logprobs) for token in tokens} == {2}
    assert {token.logprob for token in tokens} == {-0.25}


@pytest.mark.parametrize(("stop", "text"), [("gam", "alpha beta "), (["zz", "a b"], "alph")])
def test_stop_strings(ask: Ask, hermes: ScriptedModel, stop: str | list[str], text: str) -> None:
    hermes.answers("greek letters", "alpha beta gamma delta", repeats=True)
    choice = ask("greek letters", stop=stop).choices[0]
    assert (choice.message.content, choice.finish_reason) == (text, "stop")


def test_usage(ask: Ask, hermes: ScriptedModel) -> None:
    """The second time the prompt's whole blocks come from the prefix cache."""
    hermes.answers("a prompt to ask twice", "1234")
    for _ in range(2):
        usage = ask("a prompt to ask twice, which is long enough for a block").usage
    received = hermes.received("a prompt to ask twice")[-1]
    assert usage is not None
    assert usage.prompt_tokens == received.num_prompt_tokens
    assert usage.completion_tokens == 5, "four and the end token"
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


def test_what_was_asked_for_reaches_the_engine(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("many knobs", "turned")
    answer = ask(
        "many knobs",
        temperature=0.7,
        top_p=0.9,
        seed=5,
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
    assert answer.choices[0].message.content == "turned"
    params = hermes.received("many knobs")[-1].params
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.9, 40)
    assert (params.min_p, params.repetition_penalty) == (0.05, 1.1)
    assert (params.presence_penalty, params.frequency_penalty) == (0.25, -0.5)
    assert (params.seed, params.max_tokens, params.min_tokens) == (5, 77, 2)
    assert params.logit_bias == {17: -3.0}
    assert 9 in params.stop_token_ids


def test_content_parts_and_system_turns(ask: Ask, hermes: ScriptedModel) -> None:
    """Late and several system turns become the one first turn that the template allows."""
    hermes.answers("who are you", "nobody")
    answer = ask(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "who "}]},
            {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": [{"type": "text", "text": "who are you"}]},
        ]
    )
    assert answer.choices[0].message.content == "nobody"
    prompt = hermes.received("who are you")[-1].prompt
    system, _, rest = prompt.partition("<|im_end|>")
    assert system.startswith("<|im_start|>system\n")
    assert "Be brief." in system
    assert "Be kind." in system
    assert "system" not in rest


def test_characters_arrive_whole(openai_client: openai.OpenAI, hermes: ScriptedModel) -> None:
    """Each token here is a byte of them."""
    text = "🦊 žluťoučký 日本語 👩‍👩‍👧"
    hermes.answers("wide characters", text)
    stream = openai_client.chat.completions.create(
        model="hermes", messages=[{"role": "user", "content": "wide characters"}], stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_images_are_refused(ask: Ask) -> None:
    image = {"type": "image_url", "image_url": {"url": data_uri(png())}}
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(messages=[{"role": "user", "content": [image]}])
    assert refusal.value.code == "vision_unsupported"


def test_more_than_the_context_holds_is_refused_with_both_numbers(ask: Ask) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        ask("too much", model="llama3", max_completion_tokens=8192)
    assert refusal.value.code == "context_length_exceeded"
    assert "8192" in refusal.value.message


def test_models_show_what_they_can(
    openai_client: openai.OpenAI, scripted_server: ScriptedServe, ask: Ask, hermes: ScriptedModel
) -> None:
    hermes.answers("load it", "loaded")
    ask("load it")
    offered = {model.id: model for model in openai_client.models.list()}
    aliases = {alias for model in offered.values() for alias in model.model_extra["aliases"]}
    assert set(offered) - aliases == set(scripted_server.models)
    extra = offered["hermes"].model_extra or {}
    assert extra["loaded"] is True
    assert extra["limit"]["context"] == 131072
    assert extra["tool_call"] is True
    assert extra["reasoning"] is True
    assert openai_client.models.retrieve("hermes").id == "hermes"
