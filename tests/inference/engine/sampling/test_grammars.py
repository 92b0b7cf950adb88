"""Grammars: compiled once for all, a state for each sequence, and errors that a client can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from inference.engine.errors import GrammarError
from inference.engine.sampling import grammars
from inference.engine.sampling.grammars import GrammarCompiler, GrammarState
from inference.protocol.sampling import Grammar
from tests.cases import each_case

VOCAB_SIZE = 128
END_ID, END_THINK_ID = 96, 98


def lark(rule: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f"start: {rule}"}]})


def ids_of(text: str) -> list[int]:
    return [ord(character) - 32 for character in text]


def start(compiler: GrammarCompiler, rule: str, starts_after: int | None = None) -> GrammarState:
    grammar = Grammar(text=lark(rule), starts_after_token_id=starts_after)
    return compiler.compile(grammar.text).result().start(grammar)


def test_states_of_one_grammar_do_not_share_their_place(compiler: GrammarCompiler) -> None:
    first, second = start(compiler, "/ab/"), start(compiler, "/ab/")
    for token_id in ids_of("ab"):
        first.advance(token_id)
    assert first.is_complete
    assert not second.is_complete
    second.advance(ids_of("b")[0])
    assert second.problem is not None and "\n" not in second.problem
    assert not second.is_complete
    assert first.problem is None


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


@each_case(
    "text",
    ["", "no grammar", '{"grammars": []}', '{"grammars": [{"json_schema": {"type": "nothing"}}]}'],
)
def test_what_is_no_grammar_names_the_reason(compiler: GrammarCompiler, text: str) -> None:
    error = compiler.compile(text).exception()
    assert isinstance(error, GrammarError)
    assert str(error) and "\n" not in str(error)


def test_output_is_free_up_to_the_named_token(compiler: GrammarCompiler) -> None:
    state = start(compiler, "/ab/", starts_after=END_THINK_ID)
    for token_id in ids_of("b, whatever"):
        state.advance(token_id)
        assert not state.is_active and state.problem is None
    state.advance(END_THINK_ID)
    assert state.is_active and not state.is_complete
    for token_id in ids_of("ab"):
        state.advance(token_id)
    assert state.is_complete


def test_tokenizer_that_llguidance_cannot_read(tmp_path: Path) -> None:
    words = {f"word{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(WordLevel(words, unk_token="word0")).save(str(tmp_path / "words.json"))
    for file in (tmp_path / "words.json", tmp_path / "missing.json"):
        compiler = GrammarCompiler(file, VOCAB_SIZE, (END_ID,))
        problem = compiler.wait_ready()
        assert problem is not None and "tokenizer cannot be used with grammars" in problem
        assert isinstance(compiler.compile(lark("/a/")).exception(), GrammarError)


def test_ready_tokenizer(compiler: GrammarCompiler) -> None:
    assert compiler.wait_ready() is None
