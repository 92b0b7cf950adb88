"""Steps launched ahead of a real model answer as steps one by one, also where one breaks."""

from __future__ import annotations

from typing import Any

from inference.engine.engine import Engine
from inference.protocol.engine import (
    CancelSequence,
)
from tests.cases import each_case
from tests.inference.engine.asking import Answers, run, submit, tokens_of
from tests.inference.engine.conftest import Pair
from tests.inference.engine.faulty_executor import FaultyExecutor, Kind


def real_engine(pair: Pair, *, run_ahead: bool) -> Engine:
    return pair.engine(100 * pair.block_tokens, run_ahead=run_ahead)


class Faulty:
    """A real engine that runs ahead and breaks."""

    def __init__(self, pair: Any, prompts: dict[str, list[int]], **faults: Any) -> None:
        self.engine = real_engine(pair, run_ahead=True)
        assert self.engine.run_ahead is not None
        self.executor = FaultyExecutor(self.engine.run_ahead.executor, **faults)
        self.engine.executor = self.engine.run_ahead.executor = self.executor
        ask(self.engine, prompts)


def ask(engine: Engine, prompts: dict[str, list[int]]) -> None:
    for index, (name, prompt) in enumerate(prompts.items()):
        submit(engine, name, prompt, 12, temperature=0.7 * (index % 2), seed=index)


GOOD = {"greedy": [5, 6, 7], "drawn": [8, 9], "third": [11]}


@each_case("stage", ["forward", "sampling"])
@each_case("after", [0, 1, 4])
@each_case(
    ("kind", "code"),
    [(Kind.NOT_A_NUMBER, "numerical_error"), (Kind.BAD_SHAPE, "engine_error")],
)
def test_a_fault_fails_its_sequence_alone(
    llama: Any, kind: Kind, code: str, after: int, stage: Any
) -> None:
    undisturbed = tokens_of(Faulty(llama, GOOD).engine)
    faulty = Faulty(llama, GOOD | {"bad": [kind, 1, 2]}, stage=stage, after=after)
    answers = run(faulty.engine)
    assert answers.failed == {"bad": code}
    assert {name: answers.tokens[name] for name in GOOD} == undisturbed
    assert faulty.engine.stats().kv_blocks_used == 0


def test_a_real_model_answers_the_same(llama: Any) -> None:
    prompts = {f"s{n}": list(range(n, 3 * n + 2)) for n in range(1, 5)}
    found = []
    for run_ahead in (False, True):
        engine = real_engine(llama, run_ahead=run_ahead)
        ask(engine, prompts)
        found.append(tokens_of(engine))
    assert found[0] == found[1] and all(len(tokens) == 12 for tokens in found[0].values())


def test_a_step_that_raises_is_run_again_without_who_left_meanwhile(llama: Any) -> None:
    undisturbed = tokens_of(Faulty(llama, {"first": [5, 6], "second": [8, 9]}).engine)
    prompts = {"bad": [Kind.BAD_SHAPE, 1], "second": [8, 9], "leaves": [3, 3]}
    faulty, answers = Faulty(llama, prompts, stage="sampling", after=4), Answers()
    for _ in range(4):
        answers.step(faulty.engine)
    faulty.engine.cancel(CancelSequence(sequence_id="leaves"))
    answers.drain(faulty.engine)
    assert answers.failed == {"bad": "engine_error", "leaves": "cancelled"}
    assert answers.tokens["second"] == undisturbed["second"]
