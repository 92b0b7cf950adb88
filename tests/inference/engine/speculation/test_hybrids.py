"""Drafts on models with recurrent layers: a state after a wrong draft is not used."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inference.engine.speculation.speculator import Speculator
from inference.models.backend import AnyModel
from inference.models.native.build import NativeUnavailableError, load_library
from tests.inference.engine.asking import Answers, run, submit
from tests.inference.engine.conftest import OwnModel
from tests.inference.engine.speculation.test_same_answers import (
    PARAMS,
    check_same,
    engine_for,
    prompt_of,
    script,
    submit_all,
)
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families import tiny_states as states


@dataclass(frozen=True)
class Hybrid(OwnModel):
    model: AnyModel
    block_tokens: int


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tiny.qwen3_5(), tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def library(native_cache_dir: Path) -> ctypes.CDLL:
    try:
        return load_library(native_cache_dir)
    except NativeUnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def native(directory: Path, library: ctypes.CDLL) -> Hybrid:
    return Hybrid(tiny.natively(library, directory, directory / "cache"), 32)


@pytest.fixture(scope="module")
def plain(native: Hybrid, compiler: Any) -> Answers:
    engine = engine_for(native, None, compiler)
    submit_all(engine, list(PARAMS))
    return run(engine)


def test_every_parameter(native: Hybrid, compiler: Any, plain: Answers) -> None:
    engine = engine_for(native, script(plain), compiler)
    submit_all(engine, list(PARAMS))
    check_same(run(engine), plain)
    stats = engine.stats()
    assert 80 < stats.num_accepted_drafts < stats.num_drafted_tokens


def test_with_preemptions(native: Hybrid, compiler: Any, plain: Answers) -> None:
    engine = engine_for(native, script(plain), compiler, num_tokens=256)
    submit_all(engine, list(PARAMS))
    check_same(run(engine), plain)
    assert engine.stats().num_preemptions > 0


def test_prompts_that_come_while_states_lag(native: Hybrid, plain: Answers) -> None:
    names = ["greedy", "drawn", "penalised", "scored", "filtered", "short"]
    engine = engine_for(native, script(plain, wrong_every=2))
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
    assert found.tokens == {name: plain.tokens[name] for name in names}


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


OTHERS = {"lfm2": states.lfm2, "granite4": states.granite4}


def test_on_torchs_operators(directory: Path) -> None:
    check_drafts(Hybrid(tiny.on_torch(directory, directory / "cache"), tiny.BLOCK_TOKENS))


@pytest.mark.parametrize("name", OTHERS)
def test_states_of_other_kinds(name: str, library: ctypes.CDLL, tmp_path: Path) -> None:
    directory = tiny.save(OTHERS[name](), tmp_path / name)
    check_drafts(Hybrid(tiny.natively(library, directory, tmp_path), 32))


def check_drafts(model: Hybrid) -> None:
    names = ["greedy", "penalised", "drawn"]

    def answers(speculator: Speculator | None) -> Answers:
        engine = engine_for(model, speculator)
        submit_all(engine, names)
        return run(engine)

    expected = answers(None)
    check_same(answers(script(expected, wrong_every=3)), expected)
