"""Prompts that are echoed, with their tokens' log probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.neuron.text.answers import echo_of
from inference.protocol.generation import TextInput, TokensInput
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import a_chat, prepared, refusal, request_for_model

ABC = TextInput(texts=["abc"])


def test_echo_is_the_clients_text_or_its_tokens_as_text(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    token_ids = text.tokenizer.encode("Straße", add_special_tokens=False)
    for prompt in (TextInput(texts=["Straße"]), TokensInput(prompts=[token_ids])):
        request = request_for_model(prompt, echo=True)
        echo = echo_of(0, request, prepared(text, prompt, echo=True), text)
        assert echo.text == "Straße" and not echo.logprobs
    scored: dict[str, Any] = {"top_logprobs": 2, "max_tokens": 0, "echo": True}
    made = prepared(text, ABC, **scored)
    assert (made.params.prompt_logprobs, made.params.max_tokens) == (2, 1)
    (first,) = echo_of(0, request_for_model(ABC, **scored), made, text).logprobs
    assert first.logprob is None and first.top == []


@each_case(
    ("prompt", "echo", "top", "of_prompt", "scored"),
    [
        (ABC, False, 2, None, None),
        (ABC, False, None, 3, 3),
        (ABC, True, 2, 5, 5),
        (ABC, True, 2, 0, 2),
        (ABC, True, None, 0, 0),
        (a_chat("abc"), False, None, 1, 1),
    ],
)
def test_a_prompt_is_scored_for_its_echo_and_for_itself(
    byte_level_dir: Path,
    prompt: Any,
    echo: bool,
    top: int | None,
    of_prompt: int | None,
    scored: int | None,
) -> None:
    text = model_text(byte_level_dir, chat_template="{{ messages[0].content }}")
    made = prepared(text, prompt, top_logprobs=top, prompt_logprobs=of_prompt, echo=echo)
    assert made.params.prompt_logprobs == scored


def test_more_scores_than_one_answer_holds_are_refused(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, context_tokens=2**15)
    asked = TokensInput(prompts=[[5] * 2**13] * 2)
    prepared(text, asked, prompt_logprobs=15)
    failure = refusal(text, asked, prompt_logprobs=16)
    assert failure.param == "prompt_logprobs"
    assert str(2**18) in failure.message
