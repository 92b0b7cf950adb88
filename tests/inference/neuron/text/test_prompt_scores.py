"""Prompts that are echoed, with their tokens' log probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.answers import echo_of
from inference.neuron.text.prompts import prepare
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TextInput,
    TokensInput,
)
from inference.protocol.sampling import SamplingOptions
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text


def test_echo_is_the_clients_text_or_its_tokens_as_text(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    token_ids = text.tokenizer.encode("Straße", add_special_tokens=False)
    for prompt in (TextInput(texts=["Straße"]), TokensInput(prompts=[token_ids])):
        request = GenerationRequest(model="m", input=prompt, echo=True)
        echo = echo_of(0, request, prepare(request, text), text)
        assert echo.text == "Straße" and not echo.logprobs


def test_echo_with_logprobs_scores_the_prompt(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    request = GenerationRequest(
        model="m",
        input=TextInput(texts=["abc"]),
        sampling=SamplingOptions(top_logprobs=2, max_tokens=0),
        echo=True,
    )
    prepared = prepare(request, text)
    assert (prepared.params.prompt_logprobs, prepared.params.max_tokens) == (2, 1)
    echo = echo_of(0, request, prepared, text)
    (first,) = echo.logprobs
    assert first.logprob is None and first.top == []


@each_case(
    ("echo", "top", "of_prompt", "scored"),
    [
        (False, 2, None, None),
        (False, None, 3, 3),
        (True, 2, 5, 5),
        (True, 2, 0, 2),
        (True, None, 0, 0),
    ],
)
def test_a_prompt_is_scored_for_its_echo_and_for_itself(
    byte_level_dir: Path, echo: bool, top: int | None, of_prompt: int | None, scored: int | None
) -> None:
    text = model_text(byte_level_dir)
    sampling = SamplingOptions(top_logprobs=top, prompt_logprobs=of_prompt)
    request = GenerationRequest(
        model="m", input=TextInput(texts=["abc"]), sampling=sampling, echo=echo
    )
    assert prepare(request, text).params.prompt_logprobs == scored


def test_a_chat_is_scored(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, chat_template="{{ messages[0].content }}")
    chat = ChatInput(messages=[ChatMessage(role="user", content="abc")])
    sampling = SamplingOptions(prompt_logprobs=1)
    request = GenerationRequest(model="m", input=chat, sampling=sampling)
    assert prepare(request, text).params.prompt_logprobs == 1


def test_more_scores_than_one_answer_holds_are_refused(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, context_tokens=2**15)
    asked = TokensInput(prompts=[[5] * 2**13] * 2)
    for num_top, is_refused in ((15, False), (16, True)):
        request = GenerationRequest(
            model="m", input=asked, sampling=SamplingOptions(prompt_logprobs=num_top)
        )
        if not is_refused:
            prepare(request, text)
            continue
        with pytest.raises(RequestRefusedError) as refused:
            prepare(request, text)
        assert refused.value.failure.param == "prompt_logprobs"
        assert str(2**18) in refused.value.failure.message
