"""Sent beside an answer: its echo, scores of the prompt, and token ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.text.answers import Choice
from inference.neuron.text.choice_events import Echo, PromptScores
from inference.protocol.engine import SequenceStep
from inference.protocol.events import (
    Delta,
    Finished,
    OutputTokens,
    PromptScored,
    TextLogprob,
)
from inference.protocol.sampling import TokenLogprob
from inference.text.answers.choice_text import ChoiceText
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.neuron.folded_answers import (
    Folded,
    answer_of,
    events_of,
    events_of_steps,
    ids_of,
    steps_of,
    text_of,
    tokenizer,
)

__all__ = ["tokenizer"]


def test_an_echo_comes_first(tokenizer: Tokenizer) -> None:
    choice = Choice(request_id="r", text=ChoiceText(tokenizer), echo=Echo("The "))
    events = events_of_steps(answer_of(choice), steps_of(ids_of(tokenizer, "yes"), [0]))
    assert Folded(events).reported == [["text", "The yes"]]


def test_a_prompts_logprobs_come_with_its_echo(tokenizer: Tokenizer) -> None:
    prompt, answer = ids_of(tokenizer, "The "), ids_of(tokenizer, "yes")
    first = TextLogprob(token="T", token_bytes=b"T", logprob=None)
    choice = Choice(
        request_id="r", text=ChoiceText(tokenizer), echo=Echo("The ", [first], num_top=0)
    )
    scored = [TokenLogprob(token_id, -0.5) for token_id in prompt[1:]]
    of_prompt = [
        SequenceStep(sequence_id="r/0", token_ids=[], prompt_logprobs=part)
        for part in (scored[:1], scored[1:])
        if part
    ]
    of_answer = [TokenLogprob(token_id, -0.25) for token_id in answer]
    end = SequenceStep(
        sequence_id="r/0",
        token_ids=answer,
        logprobs=of_answer,
        finish_reason="length",
        num_output_tokens=len(answer),
    )
    events = events_of_steps(answer_of(choice), [*of_prompt, end])
    (delta,) = (event for event in events if isinstance(event, Delta))
    assert delta.text == "The yes" and delta.num_tokens == len(answer)
    assert [token.logprob for token in delta.logprobs or []] == [
        None,
        *[-0.5] * len(scored),
        *[-0.25] * len(answer),
    ]


def test_a_prompts_scores_are_reported_as_they_come(tokenizer: Tokenizer) -> None:
    """Each with as many candidates as were asked for, also where its echo shows another number."""
    first, second = ids_of(tokenizer, "no")
    best = [(first, -0.25), (second, -1.5)]
    echo = Echo("The ", num_top=1)
    choice = Choice(
        request_id="r", text=ChoiceText(tokenizer), echo=echo, scores=PromptScores("r", 3, 2)
    )
    scored = SequenceStep(
        sequence_id="r/0",
        token_ids=[],
        prompt_logprobs=[TokenLogprob(second, -1.5, best, 2)],
    )
    (event,) = answer_of(choice).feed(0, scored)
    assert isinstance(event, PromptScored) and event.prompt_index == 3
    reported = [[(one.text, one.logprob, one.rank) for one in token] for token in event.tokens]
    assert reported == [[("o", -1.5, 2), ("n", -0.25, 1), ("o", -1.5, 2)]]
    assert [len(token.top) for token in echo.logprobs] == [1]


@each_case("echo", [Echo("The "), None])
def test_a_prompt_alone_reports_and_counts_no_token(
    tokenizer: Tokenizer, echo: Echo | None
) -> None:
    choice = Choice(request_id="r", text=ChoiceText(tokenizer), echo=echo, is_empty=True)
    sampled = ids_of(tokenizer, "yes")[:1]
    step = SequenceStep(
        sequence_id="r/0", token_ids=sampled, finish_reason="length", num_output_tokens=1
    )
    events = events_of_steps(answer_of(choice), [step])
    assert Folded(events).reported == ([] if echo is None else [["text", "The "]])
    (finished,) = (event for event in events if isinstance(event, Finished))
    assert finished.usage.completion_tokens == 0


@given(cuts=st.lists(st.integers(0, 40), max_size=4))
def test_token_ids_are_reported_up_to_the_stop(tokenizer: Tokenizer, cuts: list[int]) -> None:
    ids = ids_of(tokenizer, "one two three four")
    choice = Choice(request_id="r", text=text_of(tokenizer, stop=["three"]), returns_token_ids=True)
    events = events_of_steps(answer_of(choice), steps_of(ids, cuts))
    reported = [
        one for event in events if isinstance(event, OutputTokens) for one in event.token_ids
    ]
    text = "".join(event.text for event in events if isinstance(event, Delta))
    assert text == "one two "
    assert reported == ids[: len(reported)]
    assert b"three" in b"".join(map(tokenizer.bytes_of, reported))
    assert len(reported) == choice.num_output_tokens < len(ids)


def test_token_ids_are_reported_only_where_asked_for(tokenizer: Tokenizer) -> None:
    events = events_of(tokenizer, "one")
    assert not any(isinstance(event, OutputTokens) for event in events)
