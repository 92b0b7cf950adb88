"""Grammars in the running engine: compiled while others run, followed by real (random) models."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import pytest

from inference.engine.engine import Engine
from inference.engine.sampling.grammars import CompiledGrammar, GrammarCompiler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.protocol.engine import (
    CancelSequence,
    SequenceCancelled,
    SequenceFailed,
)
from inference.protocol.sampling import Grammar, ThinkingLimit
from tests.cases import each_case
from tests.inference.engine.asking import run, submit, tokens_of
from tests.inference.engine.conftest import Pair

END_ID, END_THINK_ID = 96, 98
PEOPLE = {
    "type": "array",
    "minItems": 2,
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["a", "bc"]}},
        "required": ["name", "kind"],
        "additionalProperties": False,
    },
}


def json_grammar(schema: object, starts_after: int | None = None) -> Grammar:
    grammar = {"json_schema": schema | {"x-guidance": {"whitespace_flexible": False}}}  # type: ignore[operator]
    return Grammar(text=json.dumps({"grammars": [grammar]}), starts_after_token_id=starts_after)


class HeldSource:
    """Compiles when the test releases it."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._pending: list[tuple[str, Future[CompiledGrammar]]] = []

    def compile(self, text: str) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        self._pending.append((text, future))
        return future

    def compile_all(self) -> None:
        for text, future in self._pending:
            future.set_result(self._compiler.compile(text).result())


def engine_for(llama: Pair, grammars: Any, *, num_tokens: int = 2048) -> Engine:
    limits = SchedulerLimits(prefill_tokens_per_step=64)
    return llama.engine(num_tokens, limits=limits, grammars=grammars)


def ask(engine: Engine, name: str, grammar: Grammar | None, **params: Any) -> None:
    asked = {"max_tokens": 200, "stop_token_ids": [END_ID]} | params
    submit(engine, name, [len(name), *name.encode()], grammar=grammar, **asked)


def text_of(token_ids: list[int]) -> str:
    return "".join(chr(token_id + 32) for token_id in token_ids)


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.5, "seed": 4}, {"min_tokens": 190}, {"stop_token_ids": []}]
)
def test_any_model_answers_in_the_schema(
    llama: Any, compiler: GrammarCompiler, params: dict[str, Any]
) -> None:
    engine = engine_for(llama, compiler)
    for index in range(4):
        ask(engine, f"r{index}", json_grammar(PEOPLE), **params)
    answers = run(engine)
    tokens, ends = answers.tokens, answers.ends
    for name in tokens:
        people = json.loads(text_of(tokens[name]))
        assert 2 <= len(people) <= 3
        assert all(person["kind"] in ("a", "bc") for person in people)
        assert ends[name].finish_reason == "stop"
        assert ends[name].num_output_tokens == len(tokens[name])


@each_case("stop_token_ids", [[END_ID], []])
def test_a_complete_answer_ends_before_min_tokens(
    llama: Any, compiler: GrammarCompiler, stop_token_ids: list[int]
) -> None:
    engine = engine_for(llama, compiler)
    schema = {"enum": ["yes", "no"]}
    ask(engine, "r", json_grammar(schema), min_tokens=100, stop_token_ids=stop_token_ids)
    answers = run(engine)
    tokens, ends = answers.tokens, answers.ends
    assert json.loads(text_of([one for one in tokens["r"] if one != END_ID])) in schema["enum"]
    assert ends["r"].finish_reason == "stop"
    assert ends["r"].num_output_tokens < 10


def test_preemption_leaves_the_grammar_alone(llama: Any, compiler: GrammarCompiler) -> None:
    answers = []
    for num_tokens in (2048, 256):
        engine = engine_for(llama, compiler, num_tokens=num_tokens)
        for index in range(5):
            ask(engine, f"r{index}", json_grammar(PEOPLE))
        answers.append(tokens_of(engine))
    assert engine.stats().num_preemptions > 0
    assert answers[0] == answers[1]


def test_thinking_then_the_grammar(llama: Any, compiler: GrammarCompiler) -> None:
    engine = engine_for(llama, compiler)
    limit = ThinkingLimit(max_tokens=7, end_token_id=END_THINK_ID)
    grammar = json_grammar(PEOPLE, starts_after=END_THINK_ID)
    ask(engine, "r", grammar, thinking_limit=limit, logit_bias={END_ID: -100.0})
    tokens = tokens_of(engine)
    closed = tokens["r"].index(END_THINK_ID)
    assert closed <= 7
    json.loads(text_of(tokens["r"][closed + 1 :]))


def test_others_run_while_a_grammar_is_compiled(llama: Any, compiler: GrammarCompiler) -> None:
    source = HeldSource(compiler)
    engine = engine_for(llama, source)
    ask(engine, "bound", json_grammar(PEOPLE))
    ask(engine, "free", None, max_tokens=5)
    seen = [o.sequence_id for _ in range(6) for o in engine.step().outputs]
    assert seen == ["free"] * 5
    source.compile_all()
    answers = run(engine)
    tokens, ends = answers.tokens, answers.ends
    json.loads(text_of(tokens["bound"]))
    assert set(ends) == {"bound"}


def test_cancel_while_it_is_compiled(llama: Any, compiler: GrammarCompiler) -> None:
    source = HeldSource(compiler)
    engine = engine_for(llama, source)
    ask(engine, "r", json_grammar(PEOPLE))
    engine.step()
    engine.cancel(CancelSequence(sequence_id="r"))
    source.compile_all()
    assert engine.step().outputs == [SequenceCancelled(sequence_id="r")]
    assert not engine.has_work
    assert engine.stats().queue_depth == 0


def test_what_does_not_compile_fails_alone(llama: Any, compiler: GrammarCompiler) -> None:
    engine = engine_for(llama, compiler)
    ask(engine, "bad", Grammar(text='{"grammars": [{"json_schema": {"type": "nothing"}}]}'))
    ask(engine, "good", None, max_tokens=3)
    ends = run(engine).ends
    assert isinstance(ends["bad"], SequenceFailed)
    assert ends["bad"].code == "invalid_grammar"
    assert "nothing" in ends["bad"].message
    assert ends["good"].finish_reason == "length"


def test_grammar_that_gets_stuck_fails_its_sequence(llama: Any, compiler: GrammarCompiler) -> None:
    stuck = json.dumps({"grammars": [{"lark_grammar": 'start: "ab" "\u00e9"'}]})
    engine = engine_for(llama, compiler)
    ask(engine, "r", Grammar(text=stuck))
    answers = run(engine)
    tokens, ends = answers.tokens, answers.ends
    assert text_of(tokens["r"]) == "ab"
    assert ends["r"].code == "invalid_grammar"
    assert engine.stats().kv_blocks_used == 0


class Broken:
    def compile(self, text: str) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        future.set_exception(RuntimeError(text))
        return future


@each_case("grammars", [Broken(), None], ids=["a compiler that breaks", "no compiler"])
def test_a_grammar_that_cannot_be_compiled_here_fails_its_sequence(
    llama: Any, grammars: Broken | None
) -> None:
    engine = engine_for(llama, grammars)
    ask(engine, "r", Grammar(text="secret"))
    ended = run(engine).ends["r"]
    assert ended.code == "invalid_grammar" and "secret" not in ended.message
