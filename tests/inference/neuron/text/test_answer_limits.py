"""How long an answer may be: by the context, the operator, the client and the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import TokenBudget
from inference.neuron.text.prompts import prepare
from inference.protocol.generation import TextInput, TokensInput
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import prepared, refusal, request_for_model

TWO = TokensInput(prompts=[[5] * 20, [6] * 30])


@pytest.fixture
def text(byte_level_dir: Path) -> ModelText:
    return model_text(byte_level_dir)


@each_case(
    ("given", "max_tokens", "operators", "fits"),
    [
        (TokensInput(prompts=[[5] * 100]), None, None, "75 of input beside 25 of output"),
        (TokensInput(prompts=[[5] * 90]), 11, None, "75 of input beside 25 of output"),
        (TextInput(texts=["q7" * 60]), None, 10, "90 of input beside 10 of output"),
        (TextInput(texts=["x" * 100_000]), None, 10, "90 of input beside 10 of output"),
    ],
    ids=["prompt", "answer", "text by tokens", "text by bytes alone"],
)
def test_what_does_not_fit_is_refused_with_both_limits(
    byte_level_dir: Path, given: Any, max_tokens: int | None, operators: int | None, fits: str
) -> None:
    text = model_text(byte_level_dir, max_output_tokens=operators)
    failure = refusal(text, given, max_tokens=max_tokens)
    assert failure.code == "context_length_exceeded" and failure.too_long is not None
    assert "maximum context length is 100 tokens" in failure.message
    assert failure.message.endswith(f"What always fits is {fits}")


@each_case(
    ("asked", "bound", "ends_at_context", "max_tokens", "reason"),
    [
        (None, None, False, 10, "length"),
        (None, None, True, 10, "context"),
        (None, 4, True, 4, "length"),
        (None, 50, False, 10, "length"),
        (None, 50, True, 10, "context"),
        (10, None, False, 10, "length"),
        (10, None, True, 10, "length"),
        (11, None, True, 10, "context"),
        (4, 4, False, 4, "length"),
        (5, 4, True, 4, "length"),
        (11, 20, True, 10, "context"),
        (21, 20, True, 10, "context"),
    ],
)
def test_how_long_an_answer_may_be_and_why(
    byte_level_dir: Path,
    asked: int | None,
    bound: int | None,
    ends_at_context: bool,
    max_tokens: int,
    reason: str,
) -> None:
    text = model_text(byte_level_dir, max_output_tokens=bound)
    made = prepared(text, max_tokens=asked, ends_at_context=ends_at_context)
    assert (made.params.max_tokens, made.limit.reason) == (max_tokens, reason)


def test_more_than_the_operator_allows_is_refused_with_both_numbers(byte_level_dir: Path) -> None:
    failure = refusal(model_text(byte_level_dir, max_output_tokens=4), max_tokens=5)
    assert "at most 4 tokens and you asked for 5" in failure.message
    assert failure.param == "max_tokens"


def test_a_budget_that_does_not_buy_the_prompt_or_any_answer_refuses(text: ModelText) -> None:
    paid = prepare(request_for_model(TWO), text, TokenBudget(prompt_tokens=50))
    assert paid.num_prompt_tokens == 50
    failure = refusal(text, TWO, TokenBudget(prompt_tokens=49))
    assert failure.code == "insufficient_quota"
    assert "50 tokens" in failure.message and "49" in failure.message
    assert refusal(text, TWO, TokenBudget(output_tokens=0)).code == "insufficient_quota"


@each_case(
    ("cap", "asked", "operators", "expected"),
    [
        (8, None, None, 8),
        (8, None, 5, 5),
        (8, None, 12, 8),
        (8, 20, None, 20),
        (500, None, None, 70),
    ],
)
def test_the_budget_bounds_an_answer_for_which_the_client_named_no_number(
    byte_level_dir: Path, cap: int, asked: int | None, operators: int | None, expected: int
) -> None:
    text = model_text(byte_level_dir, max_output_tokens=operators)
    asked_for = request_for_model(TWO, max_tokens=asked)
    made = prepare(asked_for, text, TokenBudget(output_tokens=cap))
    assert (made.params.max_tokens, made.limit.reason) == (expected, "length")
