"""The scripted engine itself: it follows the script, and fails loudly where it cannot."""

from __future__ import annotations

import openai
import pytest

from tests.live.scripted.model import ScriptedModel
from tests.live.sdk.asking import Ask


@pytest.fixture
def ask(openai_client: openai.OpenAI) -> Ask:
    return Ask(openai_client, streams=False)


def test_follows_the_script(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("first rule", "the first")
    hermes.answers("first rule of all", "the second")
    assert ask("first rule").choices[0].message.content == "the first"
    answer = ask("first rule of all")
    assert answer.choices[0].message.content == "the second"
    assert answer.choices[0].finish_reason == "stop"
    (received,) = hermes.received("first rule of all")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == received.num_prompt_tokens


def test_a_prompt_without_a_rule_fails(ask: Ask) -> None:
    with pytest.raises(openai.InternalServerError, match="no rule for the prompt"):
        ask("nobody wrote an answer to this")


def test_ends_where_a_real_engine_ends(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("count up", "123")
    short = ask("count up", max_tokens=2).choices[0]
    assert (short.message.content, short.finish_reason) == ("12", "length")
    ignoring = {"ignore_eos": True, "stop_token_ids": []}
    endless = ask("count up", max_tokens=9, extra_body=ignoring).choices[0]
    assert (endless.message.content, endless.finish_reason) == ("1231231", "length")
    late = ask("count up", extra_body={"min_tokens": 5}).choices[0]
    assert (late.message.content, late.finish_reason) == ("123123", "stop")
    hermes.answers("cut off", "12", finish="length")
    assert ask("cut off").choices[0].finish_reason == "length"
