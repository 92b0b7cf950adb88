"""Grammars in the running engine: compiled while others run, followed by real (random) models."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer

from benchmarks.engine_costs import grammar_costs
from inference.engine.engine import Engine
from inference.engine.sampling.grammars import CompiledGrammar, GrammarCompiler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.protocol.engine import (
    CancelSequence,
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.sampling import Grammar, SamplingParams, ThinkingLimit
from tests.cases import each_case
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


def submit(engine: Engine, name: str, grammar: Grammar | None, **params: Any) -> None:
    chosen = {"max_tokens": 200, "temperature": 0.0, "stop_token_ids": [END_ID]} | params
    engine.submit(
        SubmitSequence(
            sequence_id=name,
            token_ids=[len(name), *name.encode()],
            params=SamplingParams(grammar=grammar, **chosen),
        )
    )


def drain(engine: Engine) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Every sequence's tokens, and the output that ended it."""
    tokens: dict[str, list[int]] = {}
    ends: dict[str, Any] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            if isinstance(output, SequenceStep):
                tokens.setdefault(output.sequence_id, []).extend(output.token_ids)
            if not isinstance(output, SequenceStep) or output.finish_reason is not None:
                ends[output.sequence_id] = output
    return tokens, ends


def text_of(token_ids: list[int]) -> str:
    return "".join(chr(token_id + 32) for token_id in token_ids)


@pytest.mark.parametrize("params", [{}, {"temperature": 1.5, "seed": 4}, {"min_tokens": 190}])
def test_any_model_answers_in_the_schema(
    llama: Any, compiler: GrammarCompiler, params: dict[str, Any]
) -> None:
    engine = engine_for(llama, compiler)
    for index in range(4):
        submit(engine, f"r{index}", json_grammar(PEOPLE), **params)
    tokens, ends = drain(engine)
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
    submit(engine, "r", json_grammar(schema), min_tokens=100, stop_token_ids=stop_token_ids)
    tokens, ends = drain(engine)
    assert json.loads(text_of([one for one in tokens["r"] if one != END_ID])) in schema["enum"]
    assert ends["r"].finish_reason == "stop"
    assert ends["r"].num_output_tokens < 10


def test_ignoring_the_end_still_stops_with_a_complete_answer(
    llama: Any, compiler: GrammarCompiler
) -> None:
    engine = engine_for(llama, compiler)
    submit(engine, "r", json_grammar(PEOPLE), stop_token_ids=[])
    tokens, ends = drain(engine)
    json.loads(text_of(tokens["r"]))
    assert ends["r"].finish_reason == "stop"


def test_preemption_leaves_the_grammar_alone(llama: Any, compiler: GrammarCompiler) -> None:
    answers = []
    for num_tokens in (2048, 256):
        engine = engine_for(llama, compiler, num_tokens=num_tokens)
        for index in range(5):
            submit(engine, f"r{index}", json_grammar(PEOPLE))
        answers.append(drain(engine)[0])
    assert engine.stats().num_preemptions > 0
    assert answers[0] == answers[1]


def test_thinking_then_the_grammar(llama: Any, compiler: GrammarCompiler) -> None:
    engine = engine_for(llama, compiler)
    limit = ThinkingLimit(max_tokens=7, end_token_id=END_THINK_ID)
    grammar = json_grammar(PEOPLE, starts_after=END_THINK_ID)
    submit(engine, "r", grammar, thinking_limit=limit, logit_bias={END_ID: -100.0})
    tokens, _ = drain(engine)
    closed = tokens["r"].index(END_THINK_ID)
    assert closed <= 7
    json.loads(text_of(tokens["r"][closed + 1 :]))


def test_others_run_while_a_grammar_is_compiled(llama: Any, compiler: GrammarCompiler) -> None:
    source = HeldSource(compiler)
    engine = engine_for(llama, source)
    submit(engine, "bound", json_grammar(PEOPLE))
    submit(engine, "free", None, max_tokens=5)
    seen = [o.sequence_id for _ in range(6) for o in engine.step().outputs]
    assert seen == ["free"] * 5
    source.compile_all()
    tokens, ends = drain(engine)
    json.loads(text_of(tokens["bound"]))
    assert set(ends) == {"bound"}


def test_cancel_while_it_is_compiled(llama: Any, compiler: GrammarCompiler) -> None:
    source = HeldSource(compiler)
    engine = engine_for(llama, source)
    submit(engine, "r", json_grammar(PEOPLE))
    engine.step()
    engine.cancel(CancelSequence(sequence_id="r"))
    source.compile_all()
    assert engine.step().outputs == [SequenceCancelled(sequence_id="r")]
    assert not engine.has_work
    assert engine.stats().queue_depth == 0


def test_what_does_not_compile_fails_alone(llama: Any, compiler: GrammarCompiler) -> None:
    engine = engine_for(llama, compiler)
    submit(engine, "bad", Grammar(text='{"grammars": [{"json_schema": {"type": "nothing"}}]}'))
    submit(engine, "good", None, max_tokens=3)
    _, ends = drain(engine)
    assert isinstance(ends["bad"], SequenceFailed)
    assert ends["bad"].code == "invalid_grammar"
    assert "nothing" in ends["bad"].message
    assert ends["good"].finish_reason == "length"


def test_compiler_that_breaks_fails_the_sequence_only(llama: Any) -> None:
    class Broken:
        def compile(self, text: str) -> Future[CompiledGrammar]:
            future: Future[CompiledGrammar] = Future()
            future.set_exception(RuntimeError(text))
            return future

    engine = engine_for(llama, Broken())
    submit(engine, "r", Grammar(text="secret"))
    _, ends = drain(engine)
    assert ends["r"].code == "invalid_grammar"
    assert "secret" not in ends["r"].message


def test_engine_without_grammars_refuses_one(llama: Any) -> None:
    engine = engine_for(llama, None)
    submit(engine, "r", Grammar(text="{}"))
    _, ends = drain(engine)
    assert ends["r"].code == "invalid_grammar"


def test_grammar_that_gets_stuck_fails_its_sequence(llama: Any, compiler: GrammarCompiler) -> None:
    stuck = json.dumps({"grammars": [{"lark_grammar": 'start: "ab" "\u00e9"'}]})
    engine = engine_for(llama, compiler)
    submit(engine, "r", Grammar(text=stuck))
    tokens, ends = drain(engine)
    assert text_of(tokens["r"]) == "ab"
    assert ends["r"].code == "invalid_grammar"
    assert engine.stats().kv_blocks_used == 0


def test_benchmark_measures_steps_with_and_without(
    llama: Any, compiler: GrammarCompiler, ascii_tokenizer_file: Path
) -> None:
    tokenizer = LLTokenizer(str(ascii_tokenizer_file))
    costs = grammar_costs(engine_for(llama, compiler), tokenizer, num_turns=1)
    assert [cost.temperature for cost in costs] == [0.0, 1.0]
    assert all(cost.free_ms > 0 and cost.bound_ms > 0 for cost in costs)
