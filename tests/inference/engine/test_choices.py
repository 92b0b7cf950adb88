"""Several choices of one request: they share the prompt's blocks, and are otherwise on their own.

A drawn token depends on its logits' last bits only where a random number falls between two tokens;
``FIRST_SEED`` is one of the many for which none does here.
"""

from __future__ import annotations

import random
from typing import Any

from inference.engine.engine import Engine
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.protocol.engine import CancelSequence
from tests.cases import each_case
from tests.inference.engine.asking import Answers, submit, tokens_of
from tests.inference.engine.conftest import Pair

FIRST_SEED = 100
PROMPT = random.Random(1).choices(range(128), k=100)


def engine_for(llama: Pair, *, num_tokens: int = 1024, max_running: int = 256) -> Engine:
    limits = SchedulerLimits(prefill_tokens_per_step=48, max_running=max_running)
    return llama.engine(num_tokens, limits=limits)


def ask(engine: Engine, choice: int, same_prompt_as: str | None = None) -> None:
    drawn = {"temperature": 0.8, "seed": FIRST_SEED + choice}
    submit(engine, str(choice), PROMPT, 30, same_prompt_as=same_prompt_as, **drawn)


def ask_choices(engine: Engine, num_choices: int) -> None:
    for choice in range(num_choices):
        ask(engine, choice, same_prompt_as="0" if choice else None)


def separate_answers(llama: Any, num_choices: int) -> dict[str, list[int]]:
    found = {}
    for choice in range(num_choices):
        engine = engine_for(llama)
        ask(engine, choice)
        found |= tokens_of(engine)
    return found


def full_blocks(llama: Any) -> int:
    return (len(PROMPT) - 1) // int(llama.block_tokens)


@each_case(
    ("num_choices", "how", "is_preempted"),
    [(4, {}, False), (6, {"num_tokens": 256}, True), (3, {"max_running": 1}, False)],
)
def test_choices_equal_separate_requests_with_their_seeds(
    llama: Any, num_choices: int, how: dict[str, int], is_preempted: bool
) -> None:
    engine = engine_for(llama, **how)
    ask_choices(engine, num_choices)
    found = tokens_of(engine)
    assert found == separate_answers(llama, num_choices)
    assert len({tuple(tokens) for tokens in found.values()}) > 1
    assert (engine.stats().num_preemptions > 0) == is_preempted


def test_choices_share_the_blocks_of_their_prompt(llama: Any) -> None:
    engine, answers = engine_for(llama), Answers()
    ask_choices(engine, 4)
    while len(answers.tokens) < 4:
        answers.step(engine)
    shared = full_blocks(llama)
    assert answers.cached == {"0": 0} | {str(n): shared * llama.block_tokens for n in (1, 2, 3)}
    # Each has its own last block or two; what the prompt filled is there once.
    own = engine.stats().kv_blocks_used - shared
    assert 4 <= own <= 8


def test_choices_go_ahead_when_the_first_is_cancelled(llama: Any) -> None:
    expected = separate_answers(llama, 3)
    for num_steps in (0, 1, 5):
        engine, answers = engine_for(llama), Answers()
        ask_choices(engine, 3)
        for _ in range(num_steps):
            answers.step(engine)
        engine.cancel(CancelSequence(sequence_id="0"))
        answers.drain(engine)
        assert [answers.tokens[choice] for choice in "12"] == [expected[c] for c in "12"]


def test_choice_of_a_sequence_that_has_ended(llama: Any) -> None:
    engine, answers = engine_for(llama), Answers()
    for choice, first in ((0, None), (1, "0")):
        ask(engine, choice, same_prompt_as=first)
        answers.drain(engine)
    assert answers.cached["1"] == full_blocks(llama) * llama.block_tokens
