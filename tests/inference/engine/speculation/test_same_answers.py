"""Whatever is drafted, right or wrong, for whomever: answers are those without drafts, token for
token, on the native decoder and on torch's operators."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.sampling.sampler import SampledTokens, Sampler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.speculation.speculator import Speculator
from inference.models.step_input import StepInput
from inference.protocol.engine import (
    CancelSequence,
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.sampling import Grammar, SamplingParams, ThinkingLimit, TokenLogprob
from tests.inference.engine.conftest import OwnModel
from tests.inference.engine.speculation.scripted_speculator import (
    LookupOnFreeRows,
    ScriptedSpeculator,
)

END_ID, THINK_ID, END_THINK_ID = 96, 97, 98
SCHEMA = {"type": "array", "minItems": 3, "items": {"enum": ["some", "words"]}, "maxItems": 6}
GRAMMAR = Grammar(
    text=json.dumps(
        {"grammars": [{"json_schema": SCHEMA | {"x-guidance": {"whitespace_flexible": False}}}]}
    )
)
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "short": {"max_tokens": 7},
    "drawn": {"temperature": 0.8, "seed": 3},
    "filtered": {"temperature": 1.2, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "penalised and drawn": {"frequency_penalty": 0.7, "temperature": 1.0, "seed": 8},
    "biased": {"logit_bias": {5: 2.0, 9: -100.0}},
    "scored": {"top_logprobs": 3},
    "scored and drawn": {"top_logprobs": 2, "temperature": 0.7, "seed": 11},
    "late": {"min_tokens": 20, "stop_token_ids": list(range(0, 128, 5))},
    "stopped": {"stop_token_ids": list(range(3, 128, 23))},
    "stopped and drawn": {"stop_token_ids": [7, 50, 90], "temperature": 1.0, "seed": 2},
    "bound": {"grammar": GRAMMAR, "stop_token_ids": [END_ID]},
    "bound and drawn": {"grammar": GRAMMAR, "temperature": 1.5, "seed": 6, "top_logprobs": 1},
    "thoughtful": {
        "thinking_limit": ThinkingLimit(
            max_tokens=9, end_token_id=END_THINK_ID, start_token_id=None
        ),
    },
}


class Answer:
    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.end: object = None


def engine_for(
    llama: OwnModel,
    speculator: Speculator | None,
    grammars: Any = None,
    *,
    num_tokens: int = 4096,
    run_ahead: bool = False,
    draft_model: Any = None,
) -> Engine:
    return llama.engine(
        num_tokens,
        limits=SchedulerLimits(prefill_tokens_per_step=64),
        grammars=grammars,
        speculator=speculator,
        draft_model=draft_model,
        run_ahead=run_ahead,
    )


def prompt_of(name: str) -> list[int]:
    return random.Random(name).choices(range(90), k=11 + len(name))


def submit_all(engine: Engine, names: list[str]) -> None:
    for name in names:
        params = SamplingParams(**({"max_tokens": 40, "temperature": 0.0} | PARAMS[name]))
        engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt_of(name), params=params))


def answers_of(engine: Engine) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            answer = answers.setdefault(output.sequence_id, Answer())
            if isinstance(output, SequenceStep):
                answer.token_ids += output.token_ids
                answer.logprobs += output.logprobs or []
                if output.finish_reason is not None:
                    answer.end = output.finish_reason, output.num_output_tokens
            else:
                assert isinstance(output, SequenceFailed), output
                answer.end = output.code, output.used
    return answers


def check_same(found: dict[str, Answer], expected: dict[str, Answer]) -> None:
    assert {n: a.token_ids for n, a in found.items()} == {
        n: a.token_ids for n, a in expected.items()
    }
    assert {n: a.end for n, a in found.items()} == {n: a.end for n, a in expected.items()}
    for name, answer in expected.items():
        ours = found[name].logprobs
        assert [entry.token_id for entry in ours] == [e.token_id for e in answer.logprobs]
        assert [e.logprob for e in ours] == pytest.approx(
            [e.logprob for e in answer.logprobs], abs=1e-4
        )


@pytest.fixture(scope="module")
def plain(llama: Any, compiler: Any) -> dict[str, Answer]:
    engine = engine_for(llama, None, compiler)
    submit_all(engine, list(PARAMS))
    return answers_of(engine)


def script(answers: dict[str, Answer], **how: Any) -> ScriptedSpeculator:
    """Proposes the answers, which lack their end tokens, and then tokens that never come."""
    return ScriptedSpeculator({n: [*a.token_ids, 1, 2, 3] for n, a in answers.items()}, **how)


NATIVE = pytest.mark.parametrize("llama", ["native"], indirect=True)
"""What torch's operators would show as well, slower."""


@pytest.mark.parametrize("run_ahead", [False, True])
def test_every_parameter(
    llama: Any, compiler: Any, plain: dict[str, Answer], run_ahead: bool
) -> None:
    speculator = script(plain)
    engine = engine_for(llama, speculator, compiler, run_ahead=run_ahead)
    submit_all(engine, list(PARAMS))
    check_same(answers_of(engine), plain)
    stats = engine.stats()
    assert stats.num_accepted_drafts > 80
    assert stats.num_drafted_tokens > stats.num_accepted_drafts


@NATIVE
def test_fewer_steps_where_drafts_are_right(
    llama: Any, compiler: Any, plain: dict[str, Answer]
) -> None:
    speculator = script(plain, wrong_every=1e9)
    engine = engine_for(llama, speculator, compiler)
    submit_all(engine, ["greedy", "bound", "drawn"])
    check_same(answers_of(engine), {n: plain[n] for n in ("greedy", "bound", "drawn")})
    assert speculator.num_steps < 40 / 2


@NATIVE
def test_with_preemptions(llama: Any, compiler: Any, plain: dict[str, Answer]) -> None:
    engine = engine_for(llama, script(plain), compiler, num_tokens=256)
    submit_all(engine, list(PARAMS))
    check_same(answers_of(engine), plain)
    assert engine.stats().num_preemptions > 0


@NATIVE
def test_choices_of_one_request(llama: Any) -> None:
    def answers(speculator: Speculator | None) -> dict[str, Answer]:
        engine = engine_for(llama, speculator)
        for choice in range(3):
            params = SamplingParams(max_tokens=40, temperature=0.9, seed=choice + 20)
            engine.submit(
                SubmitSequence(
                    sequence_id=str(choice),
                    token_ids=prompt_of("shared by all the choices"),
                    params=params,
                    same_prompt_as="0" if choice else None,
                )
            )
        return answers_of(engine)

    expected = answers(None)
    check_same(answers(script(expected)), expected)


@NATIVE
def test_looked_up_in_the_text(llama: Any) -> None:

    def answers(speculator: Speculator | None) -> tuple[dict[str, Answer], Engine]:
        engine = engine_for(llama, speculator)
        few_words = dict.fromkeys((5, 6, 7), 100.0)
        for name in ("a", "b"):
            params = SamplingParams(max_tokens=60, temperature=0.0, logit_bias=few_words)
            prompt = prompt_of(name)
            engine.submit(SubmitSequence(sequence_id=name, token_ids=prompt, params=params))
        return answers_of(engine), engine

    expected, _ = answers(None)
    found, engine = answers(LookupOnFreeRows())
    check_same(found, expected)
    assert engine.stats().num_accepted_drafts > 0


@NATIVE
def test_a_step_that_raises_is_run_without_its_drafts(
    llama: Any, plain: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = llama.model.forward
    num_raised = 0

    def refusing(step: StepInput, kv: Any) -> torch.Tensor:
        nonlocal num_raised
        if step.query_start[step.num_decodes] > step.num_decodes:
            num_raised += 1
            raise RuntimeError("an operator that refuses")
        return forward(step, kv)

    monkeypatch.setattr(llama.model, "forward", refusing)
    engine = engine_for(llama, script(plain))
    names = ["greedy", "drawn", "penalised"]
    submit_all(engine, names)
    check_same(answers_of(engine), {name: plain[name] for name in names})
    assert num_raised > 0


@NATIVE
def test_a_round_that_raises_ends_the_run_there(
    llama: Any, plain: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, num_raised = Sampler.choose, 0

    def refusing(self: Sampler, *args: Any, num_ahead: int = 0) -> SampledTokens:
        nonlocal num_raised
        if num_ahead == 2:
            num_raised += 1
            raise RuntimeError("an operator that refuses")
        return choose(self, *args, num_ahead=num_ahead)

    monkeypatch.setattr(Sampler, "choose", refusing)
    engine = engine_for(llama, script(plain))
    names = ["drawn", "penalised and drawn", "scored"]
    submit_all(engine, names)
    check_same(answers_of(engine), {name: plain[name] for name in names})
    assert num_raised > 0


@NATIVE
def test_rows_that_are_no_numbers_fail_their_own_sequence(
    llama: Any, plain: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = llama.model.forward
    answer = plain["greedy"].token_ids
    bad_position = len(prompt_of("greedy")) + 20

    def poisoned(step: StepInput, kv: Any) -> torch.Tensor:
        logits: torch.Tensor = forward(step, kv)
        if step.num_decodes:
            logits[torch.from_numpy(step.positions == bad_position)] = float("nan")
        return logits

    monkeypatch.setattr(llama.model, "forward", poisoned)
    engine = engine_for(llama, script(plain, wrong_every=1e9))
    submit_all(engine, ["greedy"])
    found = answers_of(engine)["greedy"]
    assert found.token_ids == answer[:21]
    assert isinstance(found.end, tuple) and found.end[0] == "numerical_error"
    assert found.end[1].num_output_tokens == 21


@NATIVE
def test_cancelled_between_runs(llama: Any, plain: dict[str, Answer]) -> None:
    engine = engine_for(llama, script(plain))
    submit_all(engine, ["greedy", "drawn"])
    answers_by_sampling: dict[str, list[int]] = {"greedy": [], "drawn": []}
    while len(answers_by_sampling["greedy"]) < 20:
        for output in engine.step().outputs:
            assert isinstance(output, SequenceStep)
            answers_by_sampling[output.sequence_id] += output.token_ids
    engine.cancel(CancelSequence(sequence_id="greedy"))
    (cancelled,) = engine.take_outputs().outputs
    assert isinstance(cancelled, SequenceCancelled)
    assert cancelled.used.num_output_tokens == len(answers_by_sampling["greedy"])
    assert (
        answers_by_sampling["drawn"] + answers_of(engine)["drawn"].token_ids
        == plain["drawn"].token_ids
    )
