"""Whatever is drafted, right or wrong, for whomever: answers are those without drafts, token for
token, on the native decoder and on torch's operators, also of models with recurrent layers. A draft
model reads what sequences share once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.sampler import SampledTokens, Sampler
from inference.engine.speculation import draft_model, prompt_lookup
from inference.engine.speculation.draft_runner import DraftRunner
from inference.engine.speculation.speculator import Speculator
from inference.models.step_input import StepInput
from inference.protocol.engine import CancelSequence, Grammar, ThinkingLimit
from tests.inference.engine.conftest import Answers, OwnModel, build_pair, library, run, submit
from tests.inference.engine.speculation.scripted_speculator import ScriptedSpeculator
from tests.inference.models.families import tiny_hybrid as tiny

pytestmark = pytest.mark.usefixtures("drafts_cost_nothing")
END_ID = 96
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
    "thoughtful": {"thinking_limit": ThinkingLimit(max_tokens=9, end_token_id=98)},
}


def engine_for(
    subject: OwnModel, speculator: Speculator | None, num_tokens: int = 4096, **how: Any
) -> Engine:
    return subject.engine(num_tokens, prefill_tokens=64, speculator=speculator, **how)


def prompt_of(name: str) -> list[int]:
    return random.Random(name).choices(range(90), k=11 + len(name))


def submit_all(engine: Engine, names: Iterable[str]) -> None:
    for name in names:
        submit(engine, name, prompt_of(name), **({"max_tokens": 40} | PARAMS[name]))


def check_same(found: Answers, expected: Answers, names: Iterable[str] = ()) -> None:
    names = sorted(names) or sorted(expected.tokens)
    assert sorted(found.tokens) == names
    for name in names:
        assert found.tokens[name] == expected.tokens[name], name
        ours, theirs = found.ends[name], expected.ends[name]
        assert ours.finish_reason == theirs.finish_reason, name
        assert ours.num_output_tokens == theirs.num_output_tokens, name
        ours, theirs = found.logprobs.get(name, []), expected.logprobs.get(name, [])
        assert [entry.token_id for entry in ours] == [entry.token_id for entry in theirs]
        assert [entry.logprob for entry in ours] == pytest.approx(
            [entry.logprob for entry in theirs], abs=1e-4
        )


def script(answers: Answers, **how: Any) -> ScriptedSpeculator:
    """Proposes the answers, which lack their end tokens, and then tokens that never come."""
    return ScriptedSpeculator({n: [*t, 1, 2, 3] for n, t in answers.tokens.items()}, **how)


@pytest.fixture(scope="module", params=["native", pytest.param("torch", marks=pytest.mark.slow)])
def subject(
    request: pytest.FixtureRequest, native_cache_dir: Path, tmp_path_factory: Any
) -> OwnModel:
    if request.param != "hybrid":
        return build_pair("llama", request.param, native_cache_dir)
    directory = tiny.save(tiny.qwen3_5(), tmp_path_factory.mktemp("hybrid"))
    return OwnModel(tiny.natively(library(native_cache_dir), directory, directory / "cache"), 32)


NATIVE = pytest.mark.parametrize("subject", ["native"], indirect=True, scope="module")
"""What torch's operators would show as well, slower."""
HYBRID = pytest.mark.parametrize("subject", ["hybrid"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def plain(subject: OwnModel, compiler: Any) -> Answers:
    engine = engine_for(subject, None, grammars=compiler)
    submit_all(engine, PARAMS)
    return run(engine)


@pytest.mark.parametrize(("run_ahead", "num_tokens"), [(False, 4096), (True, 4096), (False, 256)])
@pytest.mark.parametrize(
    ("subject", "drafting"),
    [
        *(("native", drafting) for drafting in ("scripted", "own", "other")),
        *(
            pytest.param("torch", drafting, marks=pytest.mark.slow)
            for drafting in ("scripted", "own")
        ),
        ("hybrid", "scripted"),
    ],
    indirect=["subject"],
    scope="module",
)
def test_every_parameter(
    subject: OwnModel,
    compiler: Any,
    plain: Answers,
    native_cache_dir: Path,
    drafting: str,
    run_ahead: bool,
    num_tokens: int,
) -> None:
    """With preemptions where it has few blocks. Drafts are scripted, of the model itself, or of one
    that knows nothing of it."""
    other = build_pair("llama-tied-biased", "native", native_cache_dir).model
    how = {"own": {"draft_model": subject.model}, "other": {"draft_model": other}}.get(drafting, {})
    how |= {"grammars": compiler, "run_ahead": run_ahead and drafting != "other"}
    speculator = script(plain) if drafting == "scripted" else None
    engine = engine_for(subject, speculator, num_tokens, **how)
    submit_all(engine, PARAMS)
    check_same(run(engine), plain)
    stats = engine.stats()
    assert stats.num_drafted_tokens > stats.num_accepted_drafts > 80 or drafting == "other"
    assert stats.num_accepted_drafts < stats.num_drafted_tokens / 2 or drafting != "other"
    assert (stats.num_preemptions > 0) == (num_tokens == 256)

    answers = Answers()  # one that is cancelled between runs
    submit_all(engine, ["greedy", "drawn"])
    while len(answers.tokens.get("greedy", [])) < 20:
        answers.step(engine)
    engine.cancel(CancelSequence(sequence_id="greedy"))
    (cancelled,) = engine.take_outputs().outputs
    assert cancelled.used.num_output_tokens == len(answers.tokens["greedy"])
    assert answers.drain(engine).tokens["drawn"] == plain.tokens["drawn"]


@NATIVE
def test_looked_up_in_the_text_or_a_prediction(subject: OwnModel, plain: Answers) -> None:
    few_words = {"logit_bias": dict.fromkeys((5, 6, 7), 100.0)}
    engine = engine_for(subject, None)
    submit(engine, "few words", prompt_of("few words"), 40, **few_words)
    expected = run(engine).tokens | plain.tokens
    greedy = plain.tokens["greedy"]
    edited = [*greedy[:15], 1, 2, 3, *greedy[20:]]
    for name, prediction, least in (
        ("few words", [], 1),
        ("greedy", edited, 15),
        ("greedy", greedy, 21),
        ("drawn", plain.tokens["drawn"], 21),
    ):
        engine, found = engine_for(subject, prompt_lookup.LookupSpeculator()), Answers()
        asked = PARAMS.get(name, few_words)
        submit(engine, name, prompt_of(name), 40, prediction=prediction, **asked)
        num_steps = 0
        while engine.has_work:
            found.step(engine)
            num_steps += 1
        stats = engine.stats()
        assert found.tokens[name] == expected[name]
        assert stats.num_accepted_drafts >= least
        assert num_steps < 20 or least < 21
        assert stats.num_drafted_tokens > stats.num_accepted_drafts or prediction is not edited


@NATIVE
@pytest.mark.parametrize("what", ["a step", "a round", "a draft"])
def test_what_raises_is_done_without(
    subject: OwnModel, plain: Answers, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The step is run without its drafts, a round of drawing ends the run there, and a draft model
    is left after some failures."""
    forward, choose, raised = subject.model.forward, Sampler.choose, []

    def refuse(is_due: bool) -> None:
        if is_due:
            raised.append(what)
            raise RuntimeError("an operator that refuses")

    def refusing_step(step: StepInput, kv: Any) -> torch.Tensor:
        refuse(bool(step.query_start[step.num_decodes] > step.num_decodes))
        return forward(step, kv)

    def refusing_round(self: Sampler, *args: Any, num_ahead: int = 0) -> SampledTokens:
        refuse(num_ahead == 2)
        return choose(self, *args, num_ahead=num_ahead)

    match what:
        case "a step":
            monkeypatch.setattr(subject.model, "forward", refusing_step)
        case "a round":
            monkeypatch.setattr(Sampler, "choose", refusing_round)
        case _:
            monkeypatch.setattr(DraftRunner, "draft", lambda self, rows: refuse(True))
    speculator = None if what == "a draft" else script(plain)
    engine = engine_for(subject, speculator, draft_model=None if speculator else subject.model)
    names = ["drawn", "penalised and drawn", "scored", "greedy"]
    submit_all(engine, names)
    check_same(run(engine), plain, names)
    assert len(raised) == draft_model.MOST_FAILURES if what == "a draft" else raised


@NATIVE
def test_a_model_drafts_well_and_rows_that_are_no_numbers_fail_their_own_sequence(
    subject: OwnModel, plain: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_for(subject, None, draft_model=subject.model)
    submit_all(engine, ["greedy"])
    check_same(run(engine), plain, ["greedy"])
    assert engine.stats().num_accepted_drafts > 0.95 * engine.stats().num_drafted_tokens > 0

    forward, bad_position = subject.model.forward, len(prompt_of("greedy")) + 20

    def poisoned(step: StepInput, kv: Any) -> torch.Tensor:
        logits: torch.Tensor = forward(step, kv)
        if step.num_decodes:
            logits[torch.from_numpy(step.positions == bad_position)] = float("nan")
        return logits

    monkeypatch.setattr(subject.model, "forward", poisoned)
    engine = engine_for(subject, script(plain, wrong_every=1e9))
    submit_all(engine, ["greedy"])
    found = run(engine)
    assert found.tokens["greedy"] == plain.tokens["greedy"][:21]
    assert found.failed == {"greedy": "numerical_error"}
    assert found.ends["greedy"].used.num_output_tokens == 21


@HYBRID
def test_prompts_that_come_while_states_lag(subject: OwnModel, plain: Answers) -> None:
    waiting = ["greedy", "drawn", "penalised", "scored", "filtered", "short"]
    expected = {name: plain.tokens[name] for name in waiting}
    engine, found = engine_for(subject, script(plain, wrong_every=2)), Answers()
    num_mixed = 0
    while waiting or engine.has_work:
        is_lagging = any(s.num_lagging for s in engine.scheduler.running)
        if waiting and (is_lagging or not engine.has_work):
            submit_all(engine, [waiting.pop(0)])
            num_mixed += is_lagging
        found.step(engine)
    assert num_mixed > 2
    assert found.tokens == expected


@HYBRID
def test_the_next_turn_continues_from_a_state_that_lacks_nothing(subject: OwnModel) -> None:
    def turns(speculator: Speculator | None) -> Answers:
        engine = engine_for(subject, speculator)
        prompt, answers = prompt_of("a long conversation") * 3, Answers()
        for turn in range(3):
            submit(engine, f"turn {turn}", prompt, 40)
            answers.drain(engine)
            prompt = [*prompt, *answers.tokens[f"turn {turn}"], *prompt_of(f"{turn}")]
        assert engine.stats().prefix_hit_tokens > 0
        return answers

    expected = turns(None)
    assert turns(script(expected, wrong_every=3)).tokens == expected.tokens
