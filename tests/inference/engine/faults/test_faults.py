"""Faults of a step, injected into an engine with a real model: the sequence at fault fails, and no
other sequence's tokens change."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from inference.engine import faults
from inference.engine.engine import Engine
from inference.engine.errors import DeviceFault, HangFault
from inference.engine.faults import SUSPICIOUS_STEPS
from inference.engine.grammars import CompiledGrammar, GrammarCompiler, GrammarState
from inference.engine.sequence import Sequence
from inference.engine.step import Schedule
from inference.models.kv_format import KVFormat
from inference.protocol.engine import CancelSequence, Grammar, ThinkingLimit
from tests.cases import each_case
from tests.inference.engine.conftest import Answers, OwnModel, build_pair, poison, submit
from tests.inference.engine.faulty_executor import FaultyExecutor, Kind

BAD_LENGTH = 90
LETTERS, DIGITS = (
    Grammar(text=json.dumps({"grammars": [{"lark_grammar": f"start: /[{characters}]{{12}}/"}]}))
    for characters in ("a-z", "0-9")
)
NEIGHBOURS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "top_logprobs": 3},
    "seeded": {"temperature": 0.9, "seed": 11},
    "penalised": {"temperature": 0.8, "seed": 12}
    | {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "bound": {"temperature": 0.7, "seed": 13, "grammar": LETTERS},
    "thinking": {"temperature": 0.7, "seed": 14}
    | {"thinking_limit": ThinkingLimit(max_tokens=5, end_token_id=98)},
}
LATER_PROMPT = [40, *range(20)]


class Watched:
    """An engine, what it was asked and what came of it."""

    def __init__(self, engine: Engine, **faults: Any) -> None:
        self.kv: Any = engine.executor.runner.kv
        self.faulty = FaultyExecutor(engine.executor, **faults)
        self.engine = engine
        engine.executor = self.faulty
        if engine.run_ahead is not None:
            engine.run_ahead.executor = self.faulty
        self.answers = Answers()
        self.tokens, self.failed = self.answers.tokens, self.answers.failed
        self.num_steps = 0

    def submit(self, sequence_id: str, prompt: list[int], **params: Any) -> None:
        submit(self.engine, sequence_id, prompt, **params)

    def submit_neighbours(self) -> None:
        for index, (name, params) in enumerate(NEIGHBOURS.items()):
            self.submit(name, [20 + index, *range(1, 6 + index)], **params)

    def submit_bad(self, kind: int, sequence_id: str = "bad", **params: Any) -> None:
        self.submit(sequence_id, [kind, *range(BAD_LENGTH - 1)], **params)

    def step(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self.answers.step(self.engine)
        self.num_steps += num_steps

    def drain(self) -> None:
        while self.engine.has_work:
            self.step()
        self.engine.scheduler.check_integrity()
        assert self.engine.stats().kv_blocks_used == 0


MakeEngine = Callable[..., Watched]


@pytest.fixture
def make_engine(llama: Any, compiler: GrammarCompiler) -> MakeEngine:
    def make(*, run_ahead: bool = False, **faults: Any) -> Watched:
        how = {"grammars": compiler, "run_ahead": run_ahead, "prefill_tokens": 128}
        return Watched(llama.engine(100 * llama.block_tokens, **how), **faults)

    return make


@pytest.fixture
def undisturbed(make_engine: MakeEngine) -> dict[str, list[int]]:
    watched = make_engine()
    watched.submit_neighbours()
    watched.drain()
    return watched.tokens


@each_case("stage", ["forward", "sampling"])
@each_case("run_ahead", [False, True])
@each_case("after", [0, 1, 4])
@each_case(
    ("kind", "code"),
    [
        (Kind.NOT_A_NUMBER, "numerical_error"),
        (Kind.TOO_LARGE, "out_of_memory"),
        (Kind.BAD_SHAPE, "engine_error"),
        (Kind.PANICS, "engine_error"),
    ],
)
def test_a_fault_fails_its_sequence_and_nobody_else_notices(
    make_engine: MakeEngine,
    undisturbed: dict[str, list[int]],
    kind: Kind,
    code: str,
    after: int,
    stage: str,
    run_ahead: bool,
) -> None:
    watched = make_engine(stage=stage, after=after, run_ahead=run_ahead)
    watched.submit_neighbours()
    watched.step(3)
    # The neighbours decode by now, and one more comes with the bad one.
    watched.submit_bad(kind)
    watched.submit("later", LATER_PROMPT)
    watched.drain()
    assert watched.failed == {"bad": code}
    assert len(watched.tokens["later"]) == 12
    for name, tokens in undisturbed.items():
        assert watched.tokens[name] == tokens, name

    watched.submit("afterwards", LATER_PROMPT)
    watched.drain()
    assert watched.tokens["afterwards"] == watched.tokens["later"], "it answers as before"


@each_case("stage", ["forward", "sampling"])
def test_a_step_ahead_that_raises_is_run_again_without_who_left_meanwhile(
    llama: Any, stage: str
) -> None:
    """Its neighbours are settled, as the ones above are not: their steps are launched ahead."""
    neighbours = {"greedy": [5, 6, 7], "drawn": [8, 9], "short": [11], "drawn too": [12, 1]}
    found = []
    for run_ahead in (False, True):
        watched = Watched(llama.engine(4096, run_ahead=run_ahead), stage=stage, after=4)
        for index, (name, prompt) in enumerate(neighbours.items()):
            drawn = {"temperature": 0.7 * (index % 2), "seed": index}
            watched.submit(name, prompt, max_tokens=6 if name == "short" else 12, **drawn)
        if run_ahead:
            watched.submit("bad", [Kind.BAD_SHAPE, 1])
            watched.submit("leaves", [3, 3])
            watched.step(4)
            watched.engine.cancel(CancelSequence(sequence_id="leaves"))
        watched.drain()
        found.append({name: watched.tokens[name] for name in neighbours})
        wanted = {"bad": "engine_error", "leaves": "cancelled"} if run_ahead else {}
        assert watched.failed == wanted
    assert found[0] == found[1]


PANIC = type("PanicException", (BaseException,), {})
"""Stands for what pyo3 raises where Rust panics."""


@each_case("error", [RuntimeError("gave up"), PANIC("a bound")], ids=repr)
@each_case(
    ("method", "temperature"),
    [("consume_token", 0.5), ("unsafe_compute_mask_ptr", 0.5), ("validate_tokens", 0.0)],
)
def test_a_grammar_that_raises_fails_alone_and_nobody_follows_a_token_twice(
    make_engine: MakeEngine,
    undisturbed: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    method: str,
    temperature: float,
) -> None:
    """It comes after neighbours whose counts and grammars have followed their tokens already."""
    start, calls = CompiledGrammar.start, count(1)

    def third_raises(*_: object) -> object:
        if next(calls) >= 3:
            raise error
        return DEFAULT

    def start_breaking(compiled: CompiledGrammar, grammar: Grammar) -> GrammarState:
        state = start(compiled, grammar)
        if grammar == DIGITS:
            state.matcher = Mock(wraps=state.matcher)
            getattr(state.matcher, method).side_effect = third_raises
        return state

    monkeypatch.setattr(CompiledGrammar, "start", start_breaking)
    watched = make_engine()
    watched.submit_neighbours()
    watched.step(3)
    watched.submit("bad", [30, 31], grammar=DIGITS, temperature=temperature)
    watched.submit("later", LATER_PROMPT)
    watched.drain()
    assert watched.failed == {"bad": "invalid_grammar"}
    assert {name: watched.tokens[name] for name in NEIGHBOURS} == undisturbed
    assert len(watched.faulty.attempted_tokens) == watched.num_steps, "no step was run again"


def test_a_prompt_that_does_not_fit_at_once_is_computed_in_shorter_chunks(
    make_engine: MakeEngine,
) -> None:
    """``after`` 0: every chunk of it is refused that has more than 40 of its 90 tokens."""
    for room_tokens, attempted in ((1000, [90]), (40, [90, 45, 32])):
        watched = make_engine(room_tokens=room_tokens)
        watched.submit_bad(Kind.TOO_LARGE, max_tokens=1)
        watched.drain()
        assert watched.failed == {} and len(watched.tokens["bad"]) == 1
        # 90 is refused; 45 is refused; then at most half of 90 a step, and in the end the rest.
        assert watched.faulty.attempted_tokens[:3] == attempted
    assert max(watched.faulty.attempted_tokens[3:]) <= 45


def test_a_device_that_gives_no_numbers_any_more_is_not_trusted(make_engine: MakeEngine) -> None:
    """Nor are its keys and values given to others."""
    watched = make_engine()
    for name in ("bad", "bad again"):
        for index in range(SUSPICIOUS_STEPS - 1):
            watched.submit_bad(Kind.NOT_A_NUMBER, f"{name} {index}")
            watched.drain()
        assert watched.engine.stats().prefix_hit_tokens == 0
        if name == "bad":
            watched.submit("good", LATER_PROMPT * 4, max_tokens=1)
            watched.drain()
    watched.submit_bad(Kind.NOT_A_NUMBER, "one too many")
    with pytest.raises(DeviceFault):
        watched.drain()


def test_a_device_that_is_not_sound_is_not_the_engines_to_survive(make_engine: MakeEngine) -> None:
    for stage, kind, fault in (
        ("forward", Kind.LOSES_THE_DEVICE, DeviceFault),
        ("sampling", Kind.LOSES_A_PEER, HangFault),
    ):
        watched = make_engine(stage=stage, after=3)
        watched.submit_neighbours()
        watched.submit_bad(kind)
        with pytest.raises(fault):
            watched.drain()
        assert len(watched.faulty.attempted_tokens) == 4, "it is not asked again"


@pytest.mark.parametrize("stage", ["forward", "sampling"])
def test_sequences_that_ended_are_freed_at_once(
    llama: Any, stage: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults.log, "disabled", True)  # pytest keeps log records

    def sequences() -> list[Sequence]:
        """By their type itself: ``isinstance`` raises for a weak proxy whose object is gone."""
        return [there for there in gc.get_objects() if type(there) is Sequence]

    gc.collect()
    gc.disable()
    request.addfinalizer(gc.enable)
    before = sequences()  # kept, so that no new one has the id of an old one
    known = {id(there) for there in before}
    watched = Watched(llama.engine(4096), stage=stage, after=2)
    for number, kind in enumerate((Kind.BAD_SHAPE, Kind.NOT_A_NUMBER, Kind.TOO_LARGE, 5, 6, 7)):
        drawn = {"temperature": 0.8, "seed": number, "top_logprobs": 2, "frequency_penalty": 0.5}
        submit(watched.engine, str(number), [kind, 1, 2, 3], 8, **drawn)
    for _ in range(4):
        watched.engine.step()
    watched.engine.cancel(CancelSequence(sequence_id="5"))
    while watched.engine.has_work:
        watched.engine.step()
    watched.faulty.schedule = Schedule()
    assert [there.sequence_id for there in sequences() if id(there) not in known] == []


BLOCK_TOKENS = 32
NUM_BLOCKS = 12
PATHS: list[tuple[str, KVFormat]] = [
    *[("torch", kv_format) for kv_format in ("fp32", "bf16", "int8", "fp8")],
    *[("native", kv_format) for kv_format in ("fp32", "bf16", "int8")],
]
PROMPTS = {f"p{length}": [(7 * i + length) % 128 for i in range(length)] for length in (2, 33, 79)}
"""The prompts of one batch: padding of two blocks, and of one; unwritten slots in each last
block."""


@pytest.fixture(scope="module", params=PATHS, ids=" ".join)
def model(request: pytest.FixtureRequest, native_cache_dir: Path) -> OwnModel:
    path, kv_format = request.param
    own = build_pair("llama", path, native_cache_dir, kv_format)
    own.block_tokens = BLOCK_TOKENS
    return own


def test_a_row_that_is_no_number_fails_alone_and_harms_nobody_who_gets_its_blocks(
    model: OwnModel,
) -> None:
    """NaN stays with the sequence that computed it, wherever keys and values lie: in blocks of
    earlier ones, in slots that no row has written yet, and in the padding of rows."""

    def answers(suffix: str = "", *, is_spoilt: bool = False) -> dict[str, list[int]]:
        if is_spoilt:
            poison(watched.kv, range(NUM_BLOCKS + 1), BLOCK_TOKENS)
        for name, prompt in PROMPTS.items():
            watched.submit(name + suffix, prompt, max_tokens=8)
        watched.drain()
        return {name: watched.tokens[name + suffix] for name in PROMPTS}

    def engine() -> Watched:
        return Watched(model.engine(NUM_BLOCKS * BLOCK_TOKENS, prefill_tokens=64))

    watched = engine()
    undisturbed = answers()
    watched = engine()
    assert answers(is_spoilt=True) == undisturbed
    assert watched.failed == {}

    watched, bad = engine(), [(3 * i) % 128 for i in range(70)]
    watched.submit("bad", bad, max_tokens=100)
    for name, prompt in PROMPTS.items():
        watched.submit(name, prompt, max_tokens=8)
    while not watched.tokens.get("bad"):
        watched.step()
    running = {one.sequence_id: one for one in watched.engine.scheduler.running}
    block_ids = list(running["bad"].block_ids)
    assert 0 in block_ids, "the first one, with which rows are filled up"
    poison(watched.kv, block_ids, BLOCK_TOKENS)
    watched.drain()
    assert watched.failed == {"bad": "numerical_error"}
    assert {name: watched.tokens[name] for name in PROMPTS} == undisturbed
    for index in range(3):  # until other sequences have had all of its blocks
        for name, prompt in PROMPTS.items():
            watched.submit(f"{name} later {index}", [*prompt[:-1], index, prompt[-1]])
        watched.drain()
    watched.submit("good", bad)
    watched.drain()
    assert answers(" again") == undisturbed
    assert watched.failed == {"bad": "numerical_error"}
