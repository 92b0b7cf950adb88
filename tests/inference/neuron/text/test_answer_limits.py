"""How long an answer may be: by the context, the operator, the client and the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.output_rules import TokenBudget
from inference.neuron.text.prompts import Prepared, prepare
from inference.protocol.generation import (
    GenerationRequest,
    TextInput,
    TokensInput,
)
from inference.protocol.sampling import SamplingOptions
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import prepared, request_for_model


def test_the_rest_of_the_context_is_the_default_limit(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    assert prepared(text, TokensInput(prompts=[[5] * 99])).params.max_tokens == 1
    assert prepared(text, TokensInput(prompts=[[5] * 90]), max_tokens=10).params.max_tokens == 10


@each_case(("num_prompt", "max_tokens"), [(100, None), (90, 11)])
def test_what_does_not_fit_is_refused(
    byte_level_dir: Path, num_prompt: int, max_tokens: int | None
) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        prepared(
            model_text(byte_level_dir),
            TokensInput(prompts=[[5] * num_prompt]),
            max_tokens=max_tokens,
        )
    assert refused.value.failure.code == "context_length_exceeded"
    assert refused.value.failure.too_long is not None
    assert refused.value.failure.message.endswith(
        "What always fits is 75 of input beside 25 of output"
    )


@each_case("given", ["q7" * 60, "x" * 100_000], ids=["by tokens", "by bytes alone"])
def test_a_text_that_alone_is_too_long_is_refused_with_both_limits(
    byte_level_dir: Path, given: str
) -> None:
    text = model_text(byte_level_dir, max_output_tokens=10)
    with pytest.raises(RequestRefusedError) as refused:
        prepared(text, TextInput(texts=[given]))
    failure = refused.value.failure
    assert failure.code == "context_length_exceeded"
    assert "maximum context length is 100 tokens" in failure.message
    assert failure.message.endswith("What always fits is 90 of input beside 10 of output")


@each_case(
    ("asked", "bound", "ends_at_context", "max_tokens", "reason"),
    [
        (None, None, False, 10, "length"),
        (None, None, True, 10, "context"),
        (None, 4, True, 4, "length"),
        (None, 50, False, 10, "length"),
        (None, 50, True, 10, "context"),
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
    options = SamplingOptions(max_tokens=asked)
    prepared = prepare(request_for_model(sampling=options, ends_at_context=ends_at_context), text)
    assert prepared.params.max_tokens == max_tokens
    assert prepared.limit.reason == reason


def test_more_than_the_operator_allows_is_refused_with_both_numbers(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, max_output_tokens=4)
    options = SamplingOptions(max_tokens=5)
    with pytest.raises(RequestRefusedError, match="at most 4 tokens and you asked for 5") as no:
        prepare(request_for_model(sampling=options), text)
    assert no.value.failure.param == "max_tokens"


def _afford(text: ModelText, budget: TokenBudget, **sampling: object) -> Prepared:
    request = GenerationRequest(
        model="m",
        input=TokensInput(prompts=[[5] * 20, [6] * 30]),
        sampling=SamplingOptions(**sampling),  # type: ignore[arg-type]
    )
    return prepare(request, text, budget)


def test_a_prompt_over_the_budget_is_refused_with_both_numbers(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    assert _afford(text, TokenBudget(prompt_tokens=50)).num_prompt_tokens == 50
    with pytest.raises(RequestRefusedError) as refused:
        _afford(text, TokenBudget(prompt_tokens=49))
    failure = refused.value.failure
    assert failure.code == "insufficient_quota"
    assert "50 tokens" in failure.message and "49" in failure.message


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
    prepared = _afford(text, TokenBudget(output_tokens=cap), max_tokens=asked)
    assert (prepared.params.max_tokens, prepared.limit.reason) == (expected, "length")


def test_a_budget_that_buys_no_answer_refuses(byte_level_dir: Path) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _afford(model_text(byte_level_dir), TokenBudget(output_tokens=0))
    assert refused.value.failure.code == "insufficient_quota"
