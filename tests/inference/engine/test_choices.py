"""Several choices of one request: they share the prompt's blocks, and are otherwise on their own.

A drawn token depends on its logits' last bits only where a random number falls between two tokens;
``FIRST_SEED`` is one of the many for which none does here.
"""

from __future__ import annotations

import random
from typing import Any

from inference.engine.engine import Engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.protocol.engine import CancelSequence, SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.conftest import Pair

FIRST_SEED = 100
PROMPT = random.Random(1).choices(range(128), k=100)


def engine_for(llama: Pair, *, num_tokens: int = 1024, max_running: int = 256) -> Engine:
    limits = SchedulerLimits(prefill_tokens_per_step=48, max_running=max_running)
    return llama.engine(num_tokens, limits=limits)


def submit(engine: Engine, choice: int, same_prompt_as: int | None = None) -> None:
    engine.submit(
        SubmitSequence(
            sequence_id=str(choice),
            token_ids=PROMPT,
            params=SamplingParams(max_tokens=30, seed=FIRST_SEED + choice, temperature=0.8),
            same_prompt_as=None if same_prompt_as is None else str(same_prompt_as),
        )
    )


def submit_choices(engine: Engine, num_choices: int) -> None:
    for choice in range(num_choices):
        submit(engine, choice, same_prompt_as=0 if choice else None)


class Answers:
    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def step(self, engine: Engine) -> None:
        for output in engine.step().outputs:
            if isinstance(output, SequenceStep):
                self.tokens.setdefault(output.sequence_id, []).extend(output.token_ids)
                if output.num_cached_tokens is not None:
                    self.cached[output.sequence_id] = output.num_cached_tokens

    def drain(self, engine: Engine) -> None:
        while engine.has_work:
            self.step(engine)


def separate_answers(llama: Any, num_choices: int) -> dict[str, list[int]]:
    answers = Answers()
    for choice in range(num_choices):
        engine = engine_for(llama)
        submit(engine, choice)
        answers.drain(engine)
    return answers.tokens


def full_blocks(llama: Any) -> int:
    return (len(PROMPT) - 1) // int(llama.block_tokens)


def test_choices_equal_separate_requests_with_their_seeds(llama: Any) -> None:
    engine, answers = engine_for(llama), Answers()
    submit_choices(engine, 4)
    answers.drain(engine)
    assert answers.tokens == separate_answers(llama, 4)
    assert len({tuple(tokens) for tokens in answers.tokens.values()}) > 1


def test_choices_share_the_blocks_of_their_prompt(llama: Any) -> None:
    engine, answers = engine_for(llama), Answers()
    submit_choices(engine, 4)
    while len(answers.tokens) < 4:
        answers.step(engine)
    shared = full_blocks(llama)
    assert answers.cached == {"0": 0} | {str(n): shared * llama.block_tokens for n in (1, 2, 3)}
    # Each has its own last block or two; what the prompt filled is there once.
    own = engine.stats().kv_blocks_used - shared
    assert 4 <= own <= 8


def test_choices_under_preemption(llama: Any) -> None:
    engine, answers = engine_for(llama, num_tokens=256), Answers()
    submit_choices(engine, 6)
    answers.drain(engine)
    assert engine.stats().num_preemptions > 0
    assert answers.tokens == separate_answers(llama, 6)


def test_choices_go_ahead_when_the_first_is_cancelled(llama: Any) -> None:
    for num_steps in (0, 1, 5):
        engine, answers = engine_for(llama), Answers()
        submit_choices(engine, 3)
        for _ in range(num_steps):
            answers.step(engine)
        engine.cancel(CancelSequence(sequence_id="0"))
        answers.drain(engine)
        expected = separate_answers(llama, 3)
        assert [answers.tokens[choice] for choice in "12"] == [expected[c] for c in "12"]


def test_choice_of_a_sequence_that_has_ended(llama: Any) -> None:
    engine, answers = engine_for(llama), Answers()
    submit(engine, 0)
    answers.drain(engine)
    submit(engine, 1, same_prompt_as=0)
    answers.drain(engine)
    assert answers.cached["1"] == full_blocks(llama) * llama.block_tokens


def test_with_one_slot_choices_run_one_after_the_other(llama: Any) -> None:
    engine, answers = engine_for(llama, max_running=1), Answers()
    submit_choices(engine, 3)
    answers.drain(engine)
    assert answers.tokens == separate_answers(llama, 3)
