"""What a client expects in an answer is a source of drafts, and changes no token of it."""

from __future__ import annotations

from typing import Any

import pytest

from inference.protocol.engine import SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.speculation.free_rows import LookupOnFreeRows
from tests.inference.engine.speculation.test_same_answers import engine_for, prompt_of

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
