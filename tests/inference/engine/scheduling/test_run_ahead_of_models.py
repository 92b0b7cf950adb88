"""Steps launched ahead of a real model answer as steps one by one, also where one breaks."""

from __future__ import annotations

from typing import Any

from inference.engine.engine import Engine
from inference.protocol.engine import (
    CancelSequence,
    SequenceFailed,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.engine.conftest import Pair
from tests.inference.engine.faulty_executor import FaultyExecutor, Kind


def tokens_of(pair: Any, prompts: dict[str, list[int]], **options: Any) -> dict[str, list[int]]:
    """Returns the real engine's tokens of two greedy sequences and two that are drawn."""
    engine = real_engine(pair, **options)
    for index, (name, prompt) in enumerate(prompts.items()):
        params = SamplingParams(max_tokens=20, temperature=0.8 * (index % 2), seed=index)
        engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt, params=params))
    return drained(engine)[0]


def real_engine(pair: Pair, *, run_ahead: bool) -> Engine:
    return pair.engine(100 * pair.block_tokens, run_ahead=run_ahead)


def drained(engine: Engine) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Tokens, and codes of what failed."""
    tokens: dict[str, list[int]] = {}
    failed: dict[str, str] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            if isinstance(output, SequenceStep):
                tokens.setdefault(output.sequence_id, []).extend(output.token_ids)
            elif isinstance(output, SequenceFailed):
                failed[output.sequence_id] = output.code
    return tokens, failed


def test_a_real_model_answers_the_same(llama: Any) -> None:
    prompts = {f"s{n}": list(range(n, 3 * n + 2)) for n in range(1, 5)}
    wanted = tokens_of(llama, prompts, run_ahead=False)
    assert tokens_of(llama, prompts, run_ahead=True) == wanted
    assert all(len(tokens) == 20 for tokens in wanted.values())


class Faulty:
    """A real engine that runs ahead and breaks."""

    def __init__(self, pair: Any, prompts: dict[str, list[int]], **faults: Any) -> None:
        self.engine = real_engine(pair, run_ahead=True)
        assert self.engine.run_ahead is not None
        self.executor = FaultyExecutor(self.engine.run_ahead.executor, **faults)
        self.engine.executor = self.engine.run_ahead.executor = self.executor
        for index, (name, prompt) in enumerate(prompts.items()):
            params = SamplingParams(max_tokens=12, temperature=0.7 * (index % 2), seed=index)
            self.engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt, params=params))


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
    undisturbed, _ = drained(Faulty(llama, GOOD).engine)
    faulty = Faulty(llama, GOOD | {"bad": [kind, 1, 2]}, stage=stage, after=after)
    tokens, failed = drained(faulty.engine)
    assert failed == {"bad": code}
    assert {name: tokens[name] for name in GOOD} == undisturbed
    assert faulty.engine.stats().kv_blocks_used == 0


def test_a_step_that_raises_is_run_again_without_who_left_meanwhile(llama: Any) -> None:
    undisturbed, _ = drained(Faulty(llama, {"first": [5, 6], "second": [8, 9]}).engine)
    prompts = {"bad": [Kind.BAD_SHAPE, 1], "second": [8, 9], "leaves": [3, 3]}
    faulty = Faulty(llama, prompts, stage="sampling", after=4)
    before = [faulty.engine.step() for _ in range(4)]
    faulty.engine.cancel(CancelSequence(sequence_id="leaves"))
    tokens, failed = drained(faulty.engine)
    reported = [o for outputs in before for o in outputs.outputs if isinstance(o, SequenceStep)]
    early = [t for o in reported if o.sequence_id == "second" for t in o.token_ids]
    assert failed == {"bad": "engine_error"}
    assert early + tokens["second"] == undisturbed["second"]
    assert set(tokens) == {"second"}
