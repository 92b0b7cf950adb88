"""Faults of a step, injected into an engine with a real model: the sequence at fault fails, and no
other sequence's tokens change."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inference.engine import faults
from inference.engine.engine import Engine
from inference.engine.errors import DeviceFault, HangFault, StepFault
from inference.engine.faults import SUSPICIOUS_STEPS
from inference.engine.load.build import build_engine
from inference.engine.model_runner import TensorExecutor
from inference.engine.sampling.grammars import CompiledGrammar, GrammarCompiler, GrammarState
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.sequence import Sequence
from inference.protocol.engine import CancelSequence
from inference.protocol.sampling import Grammar, ThinkingLimit
from tests.cases import each_case
from tests.inference.engine.asking import Answers, submit
from tests.inference.engine.faulty_executor import FaultyExecutor, Kind

CONTEXT_TOKENS = 256
BAD_LENGTH = 90
END_THINK_ID = 98
GRAMMAR = json.dumps({"grammars": [{"lark_grammar": "start: /[a-z]{12}/"}]})
DIGITS_GRAMMAR = json.dumps({"grammars": [{"lark_grammar": "start: /[0-9]{12}/"}]})
NEIGHBOURS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "top_logprobs": 3},
    "seeded": {"temperature": 0.9, "seed": 11},
    "penalised": {
        "temperature": 0.8,
        "seed": 12,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
    },
    "bound": {"temperature": 0.7, "seed": 13, "grammar": Grammar(text=GRAMMAR)},
    "thinking": {
        "temperature": 0.7,
        "seed": 14,
        "thinking_limit": ThinkingLimit(max_tokens=5, end_token_id=END_THINK_ID),
    },
}
LATER_PROMPT = [40, *range(20)]


class Watched:
    """An engine, what it was asked and what came of it."""

    def __init__(self, engine: Engine, faulty: FaultyExecutor) -> None:
        self.engine = engine
        self.faulty = faulty
        self.answers = Answers()
        self.tokens, self.failed = self.answers.tokens, self.answers.failed
        self.num_steps = 0

    def submit(self, sequence_id: str, prompt: list[int], **params: Any) -> None:
        submit(self.engine, sequence_id, prompt, **params)

    def submit_neighbours(self) -> None:
        for index, (name, params) in enumerate(NEIGHBOURS.items()):
            self.submit(name, [20 + index, *range(1, 6 + index)], **params)

    def submit_bad(self, kind: Kind, sequence_id: str = "bad") -> None:
        self.submit(sequence_id, [kind, *range(BAD_LENGTH - 1)])

    def step(self) -> None:
        self.num_steps += 1
        self.answers.step(self.engine)

    def drain(self) -> None:
        while self.engine.has_work:
            self.step()
        self.engine.check_integrity()
        assert self.engine.stats().kv_blocks_used == 0


MakeEngine = Callable[..., Watched]


@pytest.fixture
def make_engine(llama: Any, compiler: GrammarCompiler) -> MakeEngine:
    def make(*, run_ahead: bool = False, **faults: Any) -> Watched:
        engine = build_engine(
            llama.model,
            context_tokens=CONTEXT_TOKENS,
            num_kv_blocks=100,
            block_tokens=llama.block_tokens,
            scheduler_limits=SchedulerLimits(prefill_tokens_per_step=128),
            grammars=compiler,
            run_ahead=run_ahead,
            check_when_idle=True,
        )
        assert isinstance(engine.executor, TensorExecutor)
        faulty = FaultyExecutor(engine.executor, **faults)
        engine.executor = faulty
        if engine.run_ahead is not None:
            engine.run_ahead.executor = faulty
        return Watched(engine, faulty)

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
    for _ in range(3):
        watched.step()
    # The neighbours decode by now, and one more comes with the bad one.
    watched.submit_bad(kind)
    watched.submit("later", LATER_PROMPT)
    if leaves := run_ahead and after == 4 and kind is Kind.BAD_SHAPE:
        watched.submit("leaves", [3, 3])  # while its row is launched
        for _ in range(4):
            watched.step()
        watched.engine.cancel(CancelSequence(sequence_id="leaves"))
    watched.drain()
    assert watched.failed == {"bad": code} | ({"leaves": "cancelled"} if leaves else {})
    assert len(watched.tokens["later"]) == 12
    for name, tokens in undisturbed.items():
        assert watched.tokens[name] == tokens, name

    watched.submit("afterwards", LATER_PROMPT)
    watched.drain()
    assert watched.tokens["afterwards"] == watched.tokens["later"], "it answers as before"


class BreakingMatcher:
    """llguidance's, but for a method that raises from its third call on."""

    def __init__(self, inner: Any, method: str, error: BaseException) -> None:
        self._inner, self._method, self._error = inner, method, error
        self._num_calls = 0

    def __getattr__(self, name: str) -> Any:
        if name != self._method:
            return getattr(self._inner, name)
        self._num_calls += 1
        if self._num_calls >= 3:
            raise self._error
        return getattr(self._inner, name)


class PanicException(BaseException):
    """Stands for what pyo3 raises where Rust panics."""


@each_case("error", [RuntimeError("gave up"), PanicException("a bound")], ids=repr)
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
    start = CompiledGrammar.start

    def start_breaking(compiled: CompiledGrammar, grammar: Grammar) -> GrammarState:
        state = start(compiled, grammar)
        if grammar.text == DIGITS_GRAMMAR:
            state.matcher = BreakingMatcher(state.matcher, method, error)
        return state

    monkeypatch.setattr(CompiledGrammar, "start", start_breaking)
    watched = make_engine()
    watched.submit_neighbours()
    for _ in range(3):
        watched.step()
    grammar = Grammar(text=DIGITS_GRAMMAR)
    watched.submit("bad", [30, 31], grammar=grammar, temperature=temperature)
    watched.submit("later", LATER_PROMPT)
    watched.drain()
    assert watched.failed == {"bad": "invalid_grammar"}
    assert {name: watched.tokens[name] for name in NEIGHBOURS} == undisturbed
    assert len(watched.faulty.attempted_tokens) == watched.num_steps, "no step was run again"


def test_a_prompt_that_does_not_fit_at_once_is_computed_in_shorter_chunks(
    make_engine: MakeEngine,
) -> None:
    """``after`` 0: every chunk of it is refused that has more than 40 of its 90 tokens."""
    roomy = make_engine()
    roomy.submit("bad", [7, *range(BAD_LENGTH - 1)], max_tokens=1)
    roomy.drain()
    tight = make_engine(room_tokens=40)
    tight.submit("bad", [Kind.TOO_LARGE, *range(BAD_LENGTH - 1)], max_tokens=1)
    tight.drain()
    assert tight.failed == {}
    assert len(tight.tokens["bad"]) == 1
    # 90 is refused; 45 is refused; then at most half of 90 a step, and in the end the rest.
    assert tight.faulty.attempted_tokens[:3] == [90, 45, 32]
    assert max(tight.faulty.attempted_tokens[3:]) <= 45
    assert roomy.faulty.attempted_tokens == [90]


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


@each_case("stage", ["forward", "sampling"])
@each_case(
    ("kind", "fault"), [(Kind.LOSES_THE_DEVICE, DeviceFault), (Kind.LOSES_A_PEER, HangFault)]
)
def test_a_device_that_is_not_sound_is_not_the_engines_to_survive(
    make_engine: MakeEngine, stage: str, kind: Kind, fault: type[StepFault]
) -> None:
    watched = make_engine(stage=stage, after=3)
    watched.submit_neighbours()
    watched.submit_bad(kind)
    with pytest.raises(fault):
        watched.drain()
    assert watched.faulty.num_attempts == 4, "it is not asked again"


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sequences() -> list[Sequence]:
    """Finds the sequences by their type itself: ``isinstance`` raises for a weak proxy whose object
    is gone, which other tests may have left."""
    return [there for there in gc.get_objects() if type(there) is Sequence]


@pytest.mark.parametrize("stage", ["forward", "sampling"])
def test_sequences_that_ended_are_freed_at_once(
    llama: Any, stage: Any, no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults.log, "disabled", True)  # pytest keeps log records
    before = sequences()  # kept, so that no new one has the id of an old one
    known = {id(there) for there in before}
    engine = build_engine(
        llama.model,
        context_tokens=256,
        num_kv_blocks=4096 // llama.block_tokens,
        block_tokens=llama.block_tokens,
    )
    assert isinstance(engine.executor, TensorExecutor)
    engine.executor = FaultyExecutor(engine.executor, stage=stage, after=2)
    for number, kind in enumerate((Kind.BAD_SHAPE, Kind.NOT_A_NUMBER, Kind.TOO_LARGE, 5, 6, 7)):
        drawn = {"temperature": 0.8, "seed": number, "top_logprobs": 2, "frequency_penalty": 0.5}
        submit(engine, str(number), [kind, 1, 2, 3], 8, **drawn)
    for _ in range(4):
        engine.step()
    engine.cancel(CancelSequence(sequence_id="5"))
    while engine.has_work:
        engine.step()
    engine.executor.schedule = type(engine.executor.schedule)()
    assert [there.sequence_id for there in sequences() if id(there) not in known] == []
