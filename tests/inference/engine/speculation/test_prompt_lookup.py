"""The proposals after a text that repeats itself."""

from __future__ import annotations

import random
from typing import Any

import pytest

from inference.engine.speculation import prompt_lookup
from inference.engine.speculation.prompt_lookup import LONGEST_MATCH, SHORTEST_MATCH, PromptLookup
from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.engine.speculation.scripted_speculator import LookupOnFreeRows
from tests.inference.engine.speculation.test_same_answers import engine_for, prompt_of


def longest_match(text: list[int]) -> int:
    """Finds the longest match by looking everywhere."""
    best = 0
    for end in range(1, len(text)):
        length = 0
        while length < min(end, LONGEST_MATCH) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        best = max(best, length)
    return best


@each_case(
    ("text", "most", "proposed"),
    [
        ([5, 1, 2, 3, 4, 9, 9, 1, 2], 3, [3, 4, 9]),
        ([7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2], 1, [30]),  # the longest match wins over the last
        ([1, 2, 30, 9, 1, 2, 40, 8, 1, 2], 1, [40]),  # the last of equals
        ([4, 5, 6, 4, 5, 6, 4], 8, [5, 6, 4, 5, 6, 4, 5, 6]),  # a text that goes in circles
        *((text, 4, None) for text in ([], [1], [1, 1], [1, 2, 3, 4], [1, 2, 1])),
    ],
)
def test_what_followed_is_proposed(text: list[int], most: int, proposed: list[int] | None) -> None:
    found = PromptLookup().propose(text, most)
    assert (None if found is None else found.token_ids) == proposed


@each_case("num_words", [2, 3, 8])
def test_as_good_as_looking_everywhere(num_words: int) -> None:
    generator = random.Random(num_words)
    text: list[int] = []
    grown = PromptLookup()
    for _ in range(200):
        text.append(generator.randrange(num_words) + 1_000_000)
        found, afresh = grown.propose(text, 4), PromptLookup().propose(text, 4)
        assert found == afresh
        best = longest_match(text)
        if found is None:
            assert best < SHORTEST_MATCH
        else:
            assert best >= found.match_length >= min(best, prompt_lookup.LONG_MATCH - 1) - 2


def test_a_long_prompt_is_taken_in_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "INDEXED_AT_ONCE", 10)
    text = [*range(40), 3, 4, 5]
    lookup = PromptLookup()
    found = [lookup.propose(text, 2) for _ in range(6)]
    assert found[:4] == [None] * 4
    assert found[4] is not None and found[4].token_ids == [6, 7]


NUM_TOKENS = 40


def answer(llama: Any, prediction: list[int], **params: Any) -> list[SequenceStep]:
    engine = engine_for(llama, LookupOnFreeRows())
    own = SamplingParams(**({"max_tokens": NUM_TOKENS, "temperature": 0.0} | params))
    prompt = prompt_of("an edit")
    engine.submit(
        SubmitSequence(sequence_id="a", token_ids=prompt, params=own, prediction=prediction)
    )
    steps = []
    while engine.has_work:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            steps.append(output)
    stats = engine.stats()
    assert sum(step.num_drafted_tokens for step in steps) == stats.num_drafted_tokens
    assert sum(step.num_accepted_drafts for step in steps) == stats.num_accepted_drafts
    return steps


def tokens(steps: list[SequenceStep]) -> list[int]:
    return [token_id for step in steps for token_id in step.token_ids]


@pytest.mark.parametrize("llama", ["native"], indirect=True)
def test_a_prediction_that_is_right_is_most_of_the_answer(llama: Any) -> None:
    plain = tokens(answer(llama, []))
    steps = answer(llama, plain)
    assert tokens(steps) == plain
    assert sum(step.num_accepted_drafts for step in steps) > NUM_TOKENS // 2
    assert len(steps) < NUM_TOKENS // 2
    edited = [*plain[:15], 1, 2, 3, *plain[20:]]
    steps = answer(llama, edited)
    assert tokens(steps) == plain
    assert sum(step.num_accepted_drafts for step in steps) >= 15
    assert sum(step.num_drafted_tokens - step.num_accepted_drafts for step in steps) > 0
    drawn = {"temperature": 0.8, "seed": 5}
    assert tokens(answer(llama, plain, **drawn)) == tokens(answer(llama, [], **drawn))
