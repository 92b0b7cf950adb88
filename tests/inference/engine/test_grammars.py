"""Grammars: compiled once for all, while others run; a state for each sequence; in the sampler what
may be sampled, where it ends, and what else keeps working."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from inference.engine import grammars
from inference.engine.drawing import TorchDrawer
from inference.engine.engine import Engine
from inference.engine.errors import GrammarError
from inference.engine.grammars import CompiledGrammar, GrammarCompiler
from inference.engine.logits_processors import ThinkingBudget, apply_masks
from inference.engine.sampler import Sampler
from inference.engine.sequence import Sequence
from inference.engine.step import RowEnd, Sampled
from inference.protocol.engine import CancelSequence, Grammar, SequenceCancelled, ThinkingLimit
from tests.cases import each_case
from tests.inference.engine.conftest import run, sequence_of, submit

VOCAB_SIZE = 128
END_ID, END_THINK_ID, OTHER_END_ID = 96, 98, 99


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["a", "bc"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "minItems": 2, "maxItems": 3, "items": PERSON}


def json_grammar(schema: dict[str, Any], starts_after: int | None = None) -> Grammar:
    grammar = {"json_schema": schema | {"x-guidance": {"whitespace_flexible": False}}}
    return Grammar(text=json.dumps({"grammars": [grammar]}), starts_after_token_id=starts_after)


def lark(rule: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f"start: {rule}"}]})


def ids_of(text: str) -> list[int]:
    return [ord(character) - 32 for character in text]


def bound(
    compiler: GrammarCompiler, text: str, starts_after: int | None = None, **params: object
) -> Sequence:
    grammar = Grammar(text=text, starts_after_token_id=starts_after)
    asked = {"temperature": 0.0, "stop_token_ids": [END_ID]} | params
    sequence = sequence_of([1], grammar=grammar, **asked)
    sequence.grammar = compiler.compile(text).result().start(grammar)
    return sequence


def logits_for(*best: int) -> torch.Tensor:
    """One row in which the tokens are the likeliest, in this order."""
    logits = torch.zeros(1, VOCAB_SIZE)
    for rank, token_id in enumerate(best):
        logits[0, token_id] = 20.0 - rank
    return logits


def follow(sampler: Sampler, sequence: Sequence, *best: int) -> Sampled:
    sampled = sampler.sample([sequence], logits_for(*best))
    sequence.token_ids.append(sampled.token_ids[0])
    return sampled


A, B, C, D, Z = ids_of("abcdz")
LETTERS = "/[abc]+/"


@each_case(
    ("rule", "params", "best", "wanted", "state"),
    [
        ("/a[bc]d/", {}, [(Z,), (C, B), (Z,)], [A, C, D], "complete"),
        # The end is allowed exactly where the grammar may end.
        ("/a(b)?c*/", {}, [(END_ID,)] * 2, [A, END_ID], ""),
        ("/ab/", {"stop_token_ids": [B]}, [(B,)], [A], ""),
        ("/a{1,3}/", {"stop_token_ids": []}, [(END_ID,)] * 3, [A, A, A], "complete"),
        ('""', {"min_tokens": 3}, [(A,)], None, "ended"),
        ('""', {"stop_token_ids": [], "min_tokens": 3}, [(A,)], None, "ended"),
        # ``min_tokens`` keeps the end away while something else is left.
        ("/a*/", {"min_tokens": 2}, [(END_ID,)] * 3, [A, A, END_ID], ""),
        ("/ab/", {"min_tokens": 5, "stop_token_ids": [A]}, [(Z,)], [A], ""),
        (
            *("/a/", {"starts_after": END_THINK_ID}, [(Z,), (END_THINK_ID,), (Z,)]),
            *([Z, END_THINK_ID, A], "complete"),
        ),
        (
            "/a/",
            {
                "starts_after": END_THINK_ID,
                "thinking_limit": ThinkingLimit(max_tokens=2, end_token_id=END_THINK_ID),
            },
            *([(Z,)] * 4, [Z, Z, END_THINK_ID, A], "complete"),
        ),
        (LETTERS, {"logit_bias": {C: 50.0, Z: 90.0}}, [(A, B)], [C], ""),
        (LETTERS, {"presence_penalty": 1.5}, [(Z, A, B)] * 2, [A, B], ""),
        *(
            (LETTERS, {"temperature": 1.0, "seed": 5} | filters, [(*ids_of("zxba"),)], [B], "")
            for filters in ({"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.9})
        ),
    ],
)
def test_what_a_grammar_lets_through(
    compiler: GrammarCompiler, rule: str, params: dict[str, Any], best: Any, wanted: Any, state: str
) -> None:
    sampler, sequence = Sampler(), bound(compiler, lark(rule), **params)
    found = [follow(sampler, sequence, *ids) for ids in best]
    assert wanted is None or [sampled.token_ids[0] for sampled in found] == wanted
    *before, last = (sampled.ends for sampled in found)
    ends = {"": {}, "complete": {0: RowEnd(has_token=True)}, "ended": {0: RowEnd()}}
    assert before == [{}] * len(before) and last == ends[state]


@given(seed=st.integers(0, 10_000), length=st.integers(0, 28))
@settings(max_examples=50, deadline=None)
def test_greedy_takes_the_likeliest_allowed_token(
    compiler: GrammarCompiler, seed: int, length: int
) -> None:
    sequence = bound(compiler, json_grammar(PERSON).text)
    assert sequence.grammar is not None
    for token_id in ids_of('{"name":"somebody","kind":"bc')[:length]:
        sequence.grammar.advance(token_id)
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    scores = logits.clone()
    apply_masks(scores, [sequence], TorchDrawer())
    plain, drawn = sequence_of([1], temperature=0.0), sequence_of([1], seed=1)
    stuck = bound(compiler, lark('"\u00e9"'))  # the vocabulary has no byte beyond ASCII
    rows = [plain, sequence, drawn, bound(compiler, lark("/a/")), stuck]
    sampled = Sampler().sample(rows, logits.expand(5, -1))
    greedy, bound_id, _, only, _ = sampled.token_ids
    assert (greedy, bound_id, only) == (int(logits.argmax()), int(scores.argmax()), A)
    assert sampled.ends[3] == RowEnd(has_token=True)
    assert [row for row, end in sampled.ends.items() if end.code] == [4]


def test_the_token_that_a_thinking_budget_forces() -> None:
    start, close, word = 1, 2, 3
    for max_tokens, start_id, token_ids, forced in (
        # The prompt has opened the block, or the output opens it.
        (2, None, [word, word, close, word], [None, None, close, None, None]),
        (1, start, [word, start, word], [None, None, None, close]),
        (0, None, [close], [close, None]),
        (3, None, [word, word, close, word, word, word], [None] * 7),
        # A block that is opened again continues counting.
        (2, start, [start, word, close, start, word], [None] * 5 + [close]),
    ):
        limit = ThinkingLimit(max_tokens=max_tokens, end_token_id=close, start_token_id=start_id)
        budget = ThinkingBudget(limit)
        found = [budget.forced_token]
        for token_id in token_ids:
            budget.advance(token_id)
            found.append(budget.forced_token)
        assert found == forced


def test_equal_texts_are_compiled_once_and_the_oldest_is_dropped(
    ascii_tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 2 * grammars.COMPILED_BYTES + 500 * grammars.COMPILED_BYTES_PER_CHARACTER
    monkeypatch.setattr(grammars, "MAX_COMPILED_BYTES", room)
    compiler = GrammarCompiler(ascii_tokenizer_file, VOCAB_SIZE, (END_ID,))
    a = compiler.compile(lark("/a/"))
    b = compiler.compile(lark("/b/"))
    assert compiler.compile(lark("/a/")) is a
    compiler.compile(lark("/c/"))
    assert compiler.compile(lark("/a/")) is a
    assert compiler.compile(lark("/b/")) is not b
    long = lark("/" + 6000 * "a" + "/")
    assert compiler.compile(long) is not compiler.compile(long)


def test_tokenizers_and_grammars_that_cannot_be_read(
    tmp_path: Path, compiler: GrammarCompiler, ascii_tokenizer_file: Path
) -> None:
    assert compiler.wait_ready() is None
    both = GrammarCompiler(ascii_tokenizer_file, VOCAB_SIZE, (END_ID, OTHER_END_ID))
    for stops, expected in [([END_ID, OTHER_END_ID], OTHER_END_ID), ([END_ID], END_ID)]:
        sequence = bound(both, lark("/a*/"), stop_token_ids=stops)
        assert follow(Sampler(), sequence, OTHER_END_ID, END_ID).token_ids == [expected]
        both.forget_tokenizer()  # so the second time it is read again
    words = {f"word{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(WordLevel(words, unk_token="word0")).save(str(tmp_path / "words.json"))
    for file in (tmp_path / "words.json", tmp_path / "missing.json"):
        broken = GrammarCompiler(file, VOCAB_SIZE, (END_ID,))
        problem = broken.wait_ready()
        assert problem is not None and "tokenizer cannot be used with grammars" in problem
        assert isinstance(broken.compile(lark("/a/")).exception(), GrammarError)
    for text in (
        "",
        "no grammar",
        '{"grammars": []}',
        '{"grammars": [{"json_schema": {"type": 1}}]}',
    ):
        error = compiler.compile(text).exception()
        assert isinstance(error, GrammarError)
        assert str(error) and "\n" not in str(error)


def ask(engine: Engine, name: str, grammar: Grammar | None, **params: Any) -> None:
    asked = {"max_tokens": 200, "stop_token_ids": [END_ID]} | params
    submit(engine, name, [len(name), *name.encode()], grammar=grammar, **asked)


def text_of(token_ids: list[int]) -> str:
    return "".join(chr(token_id + 32) for token_id in token_ids)


def test_others_run_while_a_grammar_is_compiled(llama: Any, compiler: GrammarCompiler) -> None:
    pending: list[tuple[str, Future[CompiledGrammar]]] = []

    def compile_later(text: str) -> Future[CompiledGrammar]:
        pending.append((text, Future()))
        return pending[-1][1]

    engine = llama.engine(prefill_tokens=64, grammars=SimpleNamespace(compile=compile_later))
    ask(engine, "bound", json_grammar(PEOPLE))
    ask(engine, "cancelled", json_grammar(PEOPLE))
    ask(engine, "nothing", Grammar(text=lark('""')))
    ask(engine, "free", None, max_tokens=5)
    seen = [o.sequence_id for _ in range(6) for o in engine.step().outputs]
    assert seen == ["free"] * 5
    engine.cancel(CancelSequence(sequence_id="cancelled"))
    for text, future in pending:
        future.set_result(compiler.compile(text).result())
    answers = run(engine)
    people, end = json.loads(text_of(answers.tokens["bound"])), answers.ends["bound"]
    assert 2 <= len(people) <= 3 and all(person["kind"] in ("a", "bc") for person in people)
    assert (end.finish_reason, end.num_output_tokens) == ("stop", len(answers.tokens["bound"]))
    assert set(answers.ends) == {"bound", "cancelled", "nothing"}
    assert answers.tokens["nothing"] == [] and answers.ends["nothing"].finish_reason == "stop"
    assert answers.ends["cancelled"] == SequenceCancelled(sequence_id="cancelled")
    assert engine.stats().queue_depth == 0


@each_case(
    ("text", "grammars", "answer", "words"),
    [
        ('{"grammars": [{"json_schema": {"type": "nothing"}}]}', "compiler", "", "nothing"),
        (lark('"ab" "\u00e9"'), "compiler", "ab", ""),  # no token can continue it
        ("secret", "breaks", "", ""),
    ],
)
def test_a_grammar_that_cannot_be_followed_fails_its_sequence(
    llama: Any, compiler: GrammarCompiler, text: str, grammars: str, answer: str, words: str
) -> None:
    broken: Future[CompiledGrammar] = Future()
    broken.set_exception(RuntimeError(text))
    sources = {"compiler": compiler, "breaks": SimpleNamespace(compile=lambda text: broken)}
    engine = llama.engine(prefill_tokens=64, grammars=sources[grammars])
    ask(engine, "bad", Grammar(text=text))
    ask(engine, "good", None, max_tokens=3)
    answers = run(engine)
    failed = answers.ends["bad"]
    assert failed.code == "invalid_grammar"
    assert words in failed.message and "secret" not in failed.message
    assert text_of(answers.tokens.get("bad", [])) == answer
    assert answers.ends["good"].finish_reason == "length"
    assert engine.stats().kv_blocks_used == 0
