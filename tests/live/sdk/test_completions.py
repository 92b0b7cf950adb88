"""The openai SDK's text completions: lists of prompts, echo, logprobs, tokens."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion

from tests.live.scripted.model import ScriptedModel


@pytest.fixture(params=["whole", "streamed"])
def complete(request: pytest.FixtureRequest, openai_client: openai.OpenAI) -> Any:
    """Folds the chunks of a stream into what the whole answer would have been."""

    def complete(**fields: Any) -> dict[int, tuple[str, str]]:
        fields = {"model": "hermes"} | fields
        answers: list[Completion] = (
            list(openai_client.completions.create(**fields, stream=True))
            if request.param == "streamed"
            else [openai_client.completions.create(**fields)]
        )
        texts: dict[int, tuple[str, str]] = {}
        for answer in answers:
            for choice in answer.choices:
                text, reason = texts.get(choice.index, ("", ""))
                ended: str | None = choice.finish_reason
                texts[choice.index] = (text + choice.text, ended or reason)
        return texts

    return complete


def test_several_prompts(complete: Any, hermes: ScriptedModel) -> None:
    """Choice ``prompt * n + i`` is the i-th answer to a prompt."""
    hermes.answers("one fish", " swims", " sleeps")
    hermes.answers("two fish", " dance", " sing")
    assert complete(prompt=["one fish", "two fish"], n=2) == {
        0: (" swims", "stop"),
        1: (" sleeps", "stop"),
        2: (" dance", "stop"),
        3: (" sing", "stop"),
    }


def test_echo(complete: Any, hermes: ScriptedModel) -> None:
    hermes.answers("red fish", ", blue fish")
    assert complete(prompt="red fish", echo=True) == {0: ("red fish, blue fish", "stop")}


def test_tokens(complete: Any, hermes: ScriptedModel) -> None:
    """What the engine is sent is what the client sent."""
    token_ids = [ord(letter) - ord("!") for letter in "fish"]
    hermes.answers("ish", "!")
    assert complete(prompt=token_ids)[0][0] == "!"
    assert hermes.received("fish")[-1].num_prompt_tokens == 4
    assert set(complete(prompt=[token_ids, token_ids[1:]], echo=True)) == {0, 1}


def test_max_tokens(complete: Any, hermes: ScriptedModel) -> None:
    hermes.answers("count", "12345", repeats=True)
    assert complete(prompt="count", max_tokens=3) == {0: ("123", "length")}


def test_logprobs(openai_client: openai.OpenAI, hermes: ScriptedModel) -> None:
    hermes.answers("likely fish", "ok")
    answer = openai_client.completions.create(model="hermes", prompt="likely fish", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == "ok"
    assert logprobs.token_logprobs == [-0.25] * len(logprobs.tokens or [])
    assert logprobs.text_offset is not None


@pytest.mark.parametrize(("field", "value"), [("suffix", " end"), ("best_of", 3)])
def test_refused(openai_client: openai.OpenAI, field: str, value: Any) -> None:
    create: Any = openai_client.completions.create
    with pytest.raises(openai.BadRequestError) as refusal:
        create(model="hermes", prompt="fish", **{field: value})
    assert refusal.value.code == "unsupported_parameter"
    assert refusal.value.param == field
