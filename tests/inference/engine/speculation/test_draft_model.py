"""A second model makes the drafts: answers are those without it, whatever it guesses, and it reads
what sequences share once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.engine.engine import Engine
from inference.engine.sequence import Sequence
from inference.engine.speculation import draft_model
from inference.engine.speculation.draft_runner import DraftRunner
from inference.protocol.engine import (
    CancelSequence,
    EngineStats,
    SequenceCancelled,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams
from tests.inference.engine.conftest import Pair, build_pair
from tests.inference.engine.speculation.test_same_answers import (
    NATIVE,
    PARAMS,
    Answer,
    answers_of,
    check_same,
    engine_for,
    prompt_of,
    submit_all,
)


@pytest.fixture(autouse=True)
def _drafts_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else how many there are would follow from this machine's times."""

    def longest(_num_rows: int, candidates: Any, _costs: Any, _most_rows: int) -> int:
        return max(length for length, _ in candidates)

    monkeypatch.setattr(draft_model, "best_length", longest)


@pytest.fixture(scope="module")
def plain(llama: Pair, compiler: Any) -> dict[str, Answer]:
    engine = engine_for(llama, None, compiler)
    submit_all(engine, list(PARAMS))
    return answers_of(engine)


@pytest.fixture(scope="module")
def other(llama: Pair, native_cache_dir: Path) -> Any:
    """Weights of its own, and another number of heads' biases: it knows nothing of the first."""
    return build_pair("llama-tied-biased", "native", native_cache_dir).model


def accepted(stats: EngineStats) -> float:
    return stats.num_accepted_drafts / stats.num_drafted_tokens


@NATIVE
@pytest.mark.parametrize("run_ahead", [False, True])
def test_every_parameter(
    llama: Pair, compiler: Any, plain: dict[str, Answer], run_ahead: bool
) -> None:
    engine = engine_for(llama, None, compiler, run_ahead=run_ahead, draft_model=llama.model)
    submit_all(engine, list(PARAMS))
    check_same(answers_of(engine), plain)
    assert engine.stats().num_accepted_drafts > 80


@pytest.mark.parametrize("llama", ["torch"], indirect=True)
def test_on_torchs_operators(llama: Pair) -> None:
    names = ["greedy", "drawn", "stopped"]

    def answers(drafting: Any) -> dict[str, Answer]:
        engine = engine_for(llama, None, draft_model=drafting, run_ahead=True)
        submit_all(engine, names)
        return answers_of(engine)

    check_same(answers(llama.model), answers(None))


@NATIVE
def test_the_same_model_drafts_all_greedy_tokens(llama: Pair, plain: dict[str, Answer]) -> None:
    engine = engine_for(llama, None, draft_model=llama.model)
    submit_all(engine, ["greedy"])
    check_same(answers_of(engine), {"greedy": plain["greedy"]})
    assert accepted(engine.stats()) > 0.95


@NATIVE
def test_another_model_drafts_few_right_tokens_and_changes_no_answer(
    llama: Pair, compiler: Any, plain: dict[str, Answer], other: Any
) -> None:
    engine = engine_for(llama, None, compiler, draft_model=other)
    submit_all(engine, list(PARAMS))
    check_same(answers_of(engine), plain)
    assert engine.stats().num_drafted_tokens > 100
    assert accepted(engine.stats()) < 0.5


@NATIVE
def test_with_preemptions(llama: Pair, compiler: Any, plain: dict[str, Answer]) -> None:
    engine = engine_for(llama, None, compiler, num_tokens=256, draft_model=llama.model)
    submit_all(engine, list(PARAMS))
    check_same(answers_of(engine), plain)
    assert engine.stats().num_preemptions > 0
    assert engine.stats().num_accepted_drafts > 0


@NATIVE
def test_choices_of_one_request(llama: Pair) -> None:
    def answers(drafting: Any) -> dict[str, Answer]:
        engine = engine_for(llama, None, draft_model=drafting)
        for choice in range(3):
            engine.submit(
                SubmitSequence(
                    sequence_id=str(choice),
                    token_ids=prompt_of("shared by all the choices"),
                    params=SamplingParams(max_tokens=40, temperature=0.9, seed=choice + 20),
                    same_prompt_as="0" if choice else None,
                )
            )
        return answers_of(engine)

    check_same(answers(llama.model), answers(None))


@NATIVE
def test_cancelled_between_drafts(llama: Pair, plain: dict[str, Answer]) -> None:
    engine = engine_for(llama, None, draft_model=llama.model)
    submit_all(engine, ["greedy", "drawn"])
    answers_by_sampling: dict[str, list[int]] = {"greedy": [], "drawn": []}
    while len(answers_by_sampling["greedy"]) < 20:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            answers_by_sampling[output.sequence_id] += output.token_ids
    engine.cancel(CancelSequence(sequence_id="greedy"))
    (cancelled,) = engine.take_outputs().outputs
    assert isinstance(cancelled, SequenceCancelled)
    assert (
        answers_by_sampling["drawn"] + answers_of(engine)["drawn"].token_ids
        == plain["drawn"].token_ids
    )


@NATIVE
def test_a_prefix_that_was_read_for_one_serves_the_next(
    llama: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[tuple[int, int]] = []
    fill = DraftRunner.fill

    def counted(self: DraftRunner, sequence: Sequence, start: int, end: int) -> None:
        filled.append((start, end))
        fill(self, sequence, start, end)

    monkeypatch.setattr(DraftRunner, "fill", counted)
    engine = engine_for(llama, None, draft_model=llama.model)
    document = prompt_of("a document") * 4
    size = llama.block_tokens
    for name in ("first", "second"):
        before = engine.stats()
        params = SamplingParams(max_tokens=30, temperature=0.0)
        engine.submit(
            SubmitSequence(sequence_id=name, token_ids=[*document, *prompt_of(name)], params=params)
        )
        answers_of(engine)
        stats = engine.stats()
        num_accepted = stats.num_accepted_drafts - before.num_accepted_drafts
        assert num_accepted > 0.9 * (stats.num_drafted_tokens - before.num_drafted_tokens)
    starts = [start for start, _ in filled]
    assert starts[0] == 0
    assert starts[-1] == len(document) // size * size
    assert len(starts) == 2


@NATIVE
def test_one_that_raises_is_done_without(
    llama: Pair, plain: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_raised = 0

    def refusing(self: DraftRunner, rows: Any) -> list[list[int]]:
        nonlocal num_raised
        num_raised += 1
        raise RuntimeError("an operator that refuses")

    monkeypatch.setattr(DraftRunner, "draft", refusing)
    engine: Engine = engine_for(llama, None, draft_model=llama.model)
    submit_all(engine, ["greedy", "drawn"])
    check_same(answers_of(engine), {name: plain[name] for name in ("greedy", "drawn")})
    assert num_raised == draft_model.MOST_FAILURES
