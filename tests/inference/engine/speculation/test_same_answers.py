"""Whatever is drafted, right or wrong, for whomever: answers are those without drafts, token for
token, on the native decoder and on torch's operators, also of models with recurrent layers. A draft
model reads what sequences share once."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.sampler import SampledTokens, Sampler
from inference.engine.speculation import draft_model
from inference.engine.speculation.draft_runner import DraftRunner
from inference.engine.speculation.speculator import Speculator
from inference.engine.waiting_queue import SchedulerLimits
from inference.models.backend import AnyModel
from inference.models.native.library import NativeUnavailableError, load_library
from inference.models.step_input import StepInput
from inference.protocol.engine import CancelSequence, Grammar, SequenceCancelled, ThinkingLimit
from tests.inference.engine.asking import Answers, run, submit
from tests.inference.engine.conftest import OwnModel, Pair, build_pair
from tests.inference.engine.speculation.scripted_speculator import (
    LookupOnFreeRows,
    ScriptedSpeculator,
)
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families import tiny_states as states

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


def engine_for(
    llama: OwnModel,
    speculator: Speculator | None,
    grammars: Any = None,
    num_tokens: int = 4096,
    **how: Any,
) -> Engine:
    limits = SchedulerLimits(prefill_tokens_per_step=64)
    return llama.engine(num_tokens, limits=limits, grammars=grammars, speculator=speculator, **how)


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
        assert end_of(found, name) == end_of(expected, name), name
        ours, theirs = found.logprobs.get(name, []), expected.logprobs.get(name, [])
        assert [entry.token_id for entry in ours] == [entry.token_id for entry in theirs]
        assert [entry.logprob for entry in ours] == pytest.approx(
            [entry.logprob for entry in theirs], abs=1e-4
        )


def end_of(answers: Answers, name: str) -> tuple[object, object]:
    end = answers.ends[name]
    if name in answers.failed:
        return answers.failed[name], end.used
    return end.finish_reason, end.num_output_tokens


@pytest.fixture(scope="module")
def plain(llama: Any, compiler: Any) -> Answers:
    engine = engine_for(llama, None, compiler)
    submit_all(engine, PARAMS)
    return run(engine)


def script(answers: Answers, **how: Any) -> ScriptedSpeculator:
    """Proposes the answers, which lack their end tokens, and then tokens that never come."""
    return ScriptedSpeculator({n: [*t, 1, 2, 3] for n, t in answers.tokens.items()}, **how)


NATIVE = pytest.mark.parametrize("llama", ["native"], indirect=True)
"""What torch's operators would show as well, slower."""


@pytest.fixture(autouse=True)
def _drafts_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else how many there are would follow from this machine's times."""

    def longest(_num_rows: int, candidates: Any, _costs: Any, _most_rows: int) -> int:
        return max(length for length, _ in candidates)

    monkeypatch.setattr(draft_model, "best_length", longest)


@pytest.fixture(params=["scripted", "a model's"])
def drafted(request: pytest.FixtureRequest, llama: Any, plain: Answers) -> Callable[..., Engine]:
    """Engines whose drafts are scripted, or of the model itself."""

    def made(grammars: Any = None, **how: Any) -> Engine:
        is_scripted = request.param == "scripted"
        own = {} if is_scripted else {"draft_model": llama.model}
        return engine_for(llama, script(plain) if is_scripted else None, grammars, **own, **how)

    return made


@pytest.mark.parametrize(("run_ahead", "num_tokens"), [(False, 4096), (True, 4096), (False, 256)])
def test_every_parameter(
    drafted: Callable[..., Engine], compiler: Any, plain: Answers, run_ahead: bool, num_tokens: int
) -> None:
    """With preemptions where it has few blocks."""
    engine = drafted(compiler, run_ahead=run_ahead, num_tokens=num_tokens)
    submit_all(engine, PARAMS)
    check_same(run(engine), plain)
    stats = engine.stats()
    assert stats.num_drafted_tokens > stats.num_accepted_drafts > 80
    assert (stats.num_preemptions > 0) == (num_tokens == 256)


@NATIVE
def test_cancelled_between_runs(drafted: Callable[..., Engine], plain: Answers) -> None:
    engine, answers = drafted(), Answers()
    submit_all(engine, ["greedy", "drawn"])
    while len(answers.tokens.get("greedy", [])) < 20:
        answers.step(engine)
    engine.cancel(CancelSequence(sequence_id="greedy"))
    (cancelled,) = engine.take_outputs().outputs
    assert isinstance(cancelled, SequenceCancelled)
    assert cancelled.used.num_output_tokens == len(answers.tokens["greedy"])
    assert answers.drain(engine).tokens["drawn"] == plain.tokens["drawn"]


@NATIVE
def test_looked_up_in_the_text_or_a_prediction(llama: Any) -> None:
    few_words = {"logit_bias": dict.fromkeys((5, 6, 7), 100.0)}
    asked = {"few words": few_words, "greedy": {}, "drawn": {"temperature": 0.8, "seed": 5}}
    plain: dict[str, list[int]] = {}
    for name, params in asked.items():
        engine = engine_for(llama, None)
        submit(engine, name, prompt_of(name), 40, **params)
        plain |= run(engine).tokens
    greedy = plain["greedy"]
    edited = [*greedy[:15], 1, 2, 3, *greedy[20:]]
    for name, prediction, least in (
        ("few words", [], 1),
        ("greedy", edited, 15),
        ("greedy", greedy, 21),
        ("drawn", plain["drawn"], 21),
    ):
        engine, found = engine_for(llama, LookupOnFreeRows()), Answers()
        submit(engine, name, prompt_of(name), 40, prediction=prediction, **asked[name])
        num_steps = 0
        while engine.has_work:
            found.step(engine)
            num_steps += 1
        stats = engine.stats()
        assert found.tokens[name] == plain[name]
        assert stats.num_accepted_drafts >= least
        assert num_steps < 20 or least < 21
        assert stats.num_drafted_tokens > stats.num_accepted_drafts or prediction is not edited


@NATIVE
@pytest.mark.parametrize("what", ["a step", "a round", "a draft"])
def test_what_raises_is_done_without(
    llama: Any, plain: Answers, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The step is run without its drafts, a round of drawing ends the run there, and a draft model
    is left after some failures."""
    forward, choose, raised = llama.model.forward, Sampler.choose, []

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

    speculator = None if what == "a draft" else script(plain)
    match what:
        case "a step":
            monkeypatch.setattr(llama.model, "forward", refusing_step)
        case "a round":
            monkeypatch.setattr(Sampler, "choose", refusing_round)
        case _:
            monkeypatch.setattr(DraftRunner, "draft", lambda self, rows: refuse(True))
    engine = engine_for(llama, speculator, draft_model=None if speculator else llama.model)
    names = ["drawn", "penalised and drawn", "scored", "greedy"]
    submit_all(engine, names)
    check_same(run(engine), plain, names)
    assert len(raised) == draft_model.MOST_FAILURES if what == "a draft" else raised


@NATIVE
def test_rows_that_are_no_numbers_fail_their_own_sequence(
    llama: Any, plain: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, bad_position = llama.model.forward, len(prompt_of("greedy")) + 20

    def poisoned(step: StepInput, kv: Any) -> torch.Tensor:
        logits: torch.Tensor = forward(step, kv)
        if step.num_decodes:
            logits[torch.from_numpy(step.positions == bad_position)] = float("nan")
        return logits

    monkeypatch.setattr(llama.model, "forward", poisoned)
    engine = engine_for(llama, script(plain, wrong_every=1e9))
    submit_all(engine, ["greedy"])
    found = run(engine)
    assert found.tokens["greedy"] == plain.tokens["greedy"][:21]
    assert found.failed == {"greedy": "numerical_error"}
    assert found.ends["greedy"].used.num_output_tokens == 21


@NATIVE
@pytest.mark.parametrize("is_same", [True, False])
def test_a_model_drafts_as_well_as_it_knows_the_other(
    llama: Pair, compiler: Any, plain: Answers, native_cache_dir: Path, is_same: bool
) -> None:
    """Weights of its own, and biases: the other model knows nothing of the first."""
    other = build_pair("llama-tied-biased", "native", native_cache_dir).model
    names = ["greedy"] if is_same else list(PARAMS)
    engine = engine_for(llama, None, compiler, draft_model=llama.model if is_same else other)
    submit_all(engine, names)
    check_same(run(engine), plain, names)
    stats = engine.stats()
    accepted = stats.num_accepted_drafts / stats.num_drafted_tokens
    assert accepted > 0.95 if is_same else accepted < 0.5
    assert is_same or stats.num_drafted_tokens > 100


@dataclass(frozen=True)
class Hybrid(OwnModel):
    model: AnyModel
    block_tokens: int


def library(native_cache_dir: Path) -> ctypes.CDLL:
    try:
        return load_library(native_cache_dir)
    except NativeUnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def native(native_cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Hybrid:
    directory = tiny.save(tiny.qwen3_5(), tmp_path_factory.mktemp("hybrid"))
    return Hybrid(tiny.natively(library(native_cache_dir), directory, directory / "cache"), 32)


@pytest.fixture(scope="module")
def plain_hybrid(native: Hybrid, compiler: Any) -> Answers:
    engine = engine_for(native, None, compiler)
    submit_all(engine, list(PARAMS))
    return run(engine)


@pytest.mark.parametrize("num_tokens", [4096, 256])
def test_every_parameter_of_a_hybrid(
    native: Hybrid, compiler: Any, plain_hybrid: Answers, num_tokens: int
) -> None:
    """With preemptions where it has few blocks."""
    engine = engine_for(native, script(plain_hybrid), compiler, num_tokens=num_tokens)
    submit_all(engine, PARAMS)
    check_same(run(engine), plain_hybrid)
    stats = engine.stats()
    assert 80 < stats.num_accepted_drafts < stats.num_drafted_tokens
    assert (stats.num_preemptions > 0) == (num_tokens == 256)


def test_prompts_that_come_while_states_lag(native: Hybrid, plain_hybrid: Answers) -> None:
    names = ["greedy", "drawn", "penalised", "scored", "filtered", "short"]
    engine = engine_for(native, script(plain_hybrid, wrong_every=2))
    found = Answers()
    waiting = list(names)
    num_mixed = 0
    while waiting or engine.has_work:
        is_lagging = any(s.num_lagging for s in engine.scheduler.running)
        if waiting and (is_lagging or not engine.has_work):
            submit_all(engine, [waiting.pop(0)])
            num_mixed += is_lagging
        found.step(engine)
    assert num_mixed > 2
    assert found.tokens == {name: plain_hybrid.tokens[name] for name in names}


def test_the_next_turn_continues_from_a_state_that_lacks_nothing(native: Hybrid) -> None:
    def turns(speculator: Speculator | None) -> Answers:
        engine = engine_for(native, speculator)
        prompt, answers = prompt_of("a long conversation") * 3, Answers()
        for turn in range(3):
            submit(engine, f"turn {turn}", prompt, 40)
            answers.drain(engine)
            prompt = [*prompt, *answers.tokens[f"turn {turn}"], *prompt_of(f"{turn}")]
        assert engine.stats().prefix_hit_tokens > 0
        return answers

    expected = turns(None)
    assert turns(script(expected, wrong_every=3)).tokens == expected.tokens


@pytest.mark.parametrize("made", [tiny.qwen3_5, states.lfm2, states.granite4])
def test_states_of_other_kinds(
    made: Callable[[], Any], native_cache_dir: Path, tmp_path: Path
) -> None:
    """The first on torch's operators."""
    directory = tiny.save(made(), tmp_path / "model")
    if made is tiny.qwen3_5:
        model = Hybrid(tiny.on_torch(directory, tmp_path), tiny.BLOCK_TOKENS)
    else:
        model = Hybrid(tiny.natively(library(native_cache_dir), directory, tmp_path), 32)

    def answers(speculator: Speculator | None) -> Answers:
        engine = engine_for(model, speculator)
        submit_all(engine, ["greedy", "penalised", "drawn"])
        return run(engine)

    expected = answers(None)
    check_same(answers(script(expected, wrong_every=3)), expected)
