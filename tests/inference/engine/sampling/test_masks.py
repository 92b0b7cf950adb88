"""Grammars: compiled once for all, a state for each sequence; in the sampler what may be sampled,
where it ends, and what else keeps working."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from inference.engine.errors import GrammarError
from inference.engine.sampling import grammars
from inference.engine.sampling.drawing import TorchDrawer
from inference.engine.sampling.grammars import GrammarCompiler, GrammarState
from inference.engine.sampling.logits_processors import ThinkingBudget, apply_masks
from inference.engine.sampling.sampler import Sampler
from inference.engine.sequence import Sequence
from inference.engine.step import Sampled
from inference.protocol.sampling import Grammar, ThinkingLimit
from tests.cases import each_case
from tests.inference.engine.asking import sequence_of

VOCAB_SIZE = 128
END_ID, THINK_ID, END_THINK_ID = 96, 97, 98
OTHER_END_ID = 99
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def lark(rule: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f"start: {rule}"}]})


def id_of(character: str) -> int:
    return ord(character) - 32


def ids_of(text: str) -> list[int]:
    return [id_of(character) for character in text]


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


def test_only_what_the_grammar_allows(compiler: GrammarCompiler) -> None:
    sampler, sequence = Sampler(VOCAB_SIZE), bound(compiler, lark("/a[bc]d/"))
    for wanted, best in [("a", "z"), ("c", "cb"), ("d", "x")]:
        sampled = follow(sampler, sequence, *ids_of(best))
        assert sampled.token_ids == [id_of(wanted)]
    assert sampled.complete == {0}


def test_the_end_is_allowed_exactly_where_the_grammar_may_end(compiler: GrammarCompiler) -> None:
    sampler, sequence = Sampler(VOCAB_SIZE), bound(compiler, lark("/a(b)?c*/"))
    assert follow(sampler, sequence, END_ID).token_ids == [id_of("a")]
    sampled = follow(sampler, sequence, END_ID)
    assert sampled.token_ids == [END_ID]
    assert not sampled.complete and not sampled.ended and not sampled.broken


def test_every_end_token_that_stops_the_sequence(ascii_tokenizer_file: Path) -> None:
    compiler = GrammarCompiler(ascii_tokenizer_file, VOCAB_SIZE, (END_ID, OTHER_END_ID))
    for stops, expected in [([END_ID, OTHER_END_ID], OTHER_END_ID), ([END_ID], END_ID)]:
        sequence = bound(compiler, lark("/a*/"), stop_token_ids=stops)
        assert follow(Sampler(VOCAB_SIZE), sequence, OTHER_END_ID, END_ID).token_ids == [expected]


def test_stop_token_that_is_no_end_needs_the_grammar(compiler: GrammarCompiler) -> None:
    sequence = bound(compiler, lark("/ab/"), stop_token_ids=[id_of("b")])
    assert follow(Sampler(VOCAB_SIZE), sequence, id_of("b")).token_ids == [id_of("a")]


def test_ignoring_the_end_continues_until_the_grammar_is_complete(
    compiler: GrammarCompiler,
) -> None:
    sampler = Sampler(VOCAB_SIZE)
    sequence = bound(compiler, lark("/a{1,3}/"), stop_token_ids=[])
    complete = [bool(follow(sampler, sequence, END_ID).complete) for _ in range(3)]
    assert sequence.token_ids[1:] == ids_of("aaa")
    assert complete == [False, False, True]


def test_grammar_that_allows_only_the_end(compiler: GrammarCompiler) -> None:
    for stops in ([END_ID], []):
        sequence = bound(compiler, lark('""'), stop_token_ids=stops, min_tokens=3)
        assert follow(Sampler(VOCAB_SIZE), sequence, id_of("a")).ended == {0}


def test_min_tokens_keeps_the_end_away_while_something_else_is_left(
    compiler: GrammarCompiler,
) -> None:
    sampler, sequence = Sampler(VOCAB_SIZE), bound(compiler, lark("/a*/"), min_tokens=2)
    taken = [follow(sampler, sequence, END_ID).token_ids[0] for _ in range(3)]
    assert taken == [*ids_of("aa"), END_ID]


def test_min_tokens_gives_way_where_only_a_stop_token_is_left(compiler: GrammarCompiler) -> None:
    sequence = bound(compiler, lark("/ab/"), min_tokens=5, stop_token_ids=[id_of("a")])
    sampled = follow(Sampler(VOCAB_SIZE), sequence, id_of("z"))
    assert sampled.token_ids == [id_of("a")]
    assert not sampled.broken


def test_free_until_the_named_token(compiler: GrammarCompiler) -> None:
    sampler = Sampler(VOCAB_SIZE)
    sequence = bound(compiler, lark("/a/"), starts_after=END_THINK_ID)
    for best in (id_of("z"), END_THINK_ID):
        assert follow(sampler, sequence, best).token_ids == [best]
    assert follow(sampler, sequence, id_of("z")).complete == {0}


def test_thinking_limit_closes_the_block_and_the_grammar_begins(compiler: GrammarCompiler) -> None:
    sampler = Sampler(VOCAB_SIZE)
    limit = ThinkingLimit(max_tokens=2, end_token_id=END_THINK_ID)
    sequence = bound(compiler, lark("/a/"), starts_after=END_THINK_ID, thinking_limit=limit)
    taken = [follow(sampler, sequence, id_of("z")).token_ids[0] for _ in range(4)]
    assert taken == [id_of("z"), id_of("z"), END_THINK_ID, id_of("a")]


@each_case("temperature", [0.0, 1.0])
def test_thinking_limit_without_a_grammar(temperature: float) -> None:
    limit = ThinkingLimit(max_tokens=1, end_token_id=END_THINK_ID, start_token_id=THINK_ID)
    sequence = sequence_of(
        [1], temperature=temperature, thinking_limit=limit, presence_penalty=0.1, seed=3
    )
    sampler = Sampler(VOCAB_SIZE)
    best = [id_of("a"), THINK_ID, id_of("b"), id_of("c"), id_of("d"), id_of("e")]
    logits = [logits_for(token_id) * 10 for token_id in best]
    taken = [sampler.sample([sequence], row).token_ids[0] for row in logits]
    assert taken == [*best[:3], END_THINK_ID, *best[4:]]


def test_grammar_that_no_token_can_continue_breaks_its_row_alone(compiler: GrammarCompiler) -> None:
    # The vocabulary has no byte beyond ASCII.
    stuck, fine = bound(compiler, lark('"a" "\u00e9"')), bound(compiler, lark("/ab/"))
    sampler = Sampler(VOCAB_SIZE)
    for _ in range(2):
        sampled = sampler.sample([fine, stuck], logits_for(id_of("a")).expand(2, -1))
    assert set(sampled.broken) == {1}
    assert sampled.complete == {0}


def test_grammar_among_rows_without(compiler: GrammarCompiler) -> None:
    plain, drawn = sequence_of([1], temperature=0.0), sequence_of([1], seed=1)
    rows = [plain, bound(compiler, lark("/a/")), drawn, bound(compiler, lark("/bc/"))]
    sampled = Sampler(VOCAB_SIZE).sample(rows, logits_for(id_of("z")).expand(4, -1) * 5)
    assert sampled.token_ids == ids_of("zazb")
    assert sampled.complete == {1}


def test_penalties_bias_and_filters_work_within_the_grammar(compiler: GrammarCompiler) -> None:
    text = lark("/[abc]+/")
    biased = bound(compiler, text, logit_bias={id_of("c"): 50.0, id_of("z"): 90.0})
    assert follow(Sampler(VOCAB_SIZE), biased, *ids_of("ab")).token_ids == [id_of("c")]
    sampler, penalised = Sampler(VOCAB_SIZE), bound(compiler, text, presence_penalty=1.5)
    taken = [follow(sampler, penalised, *ids_of("zab")).token_ids[0] for _ in range(2)]
    assert taken == ids_of("ab")
    for filters in ({"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.9}):
        filtered = bound(compiler, text, temperature=1.0, seed=5, **filters)
        assert follow(Sampler(VOCAB_SIZE), filtered, *ids_of("zxba")).token_ids == [id_of("b")]


def test_logprobs_stay_those_of_the_model(compiler: GrammarCompiler) -> None:
    sequence = bound(compiler, lark("/a/"), top_logprobs=1)
    sampled = follow(Sampler(VOCAB_SIZE), sequence, id_of("z"), id_of("a"))
    expected = logits_for(id_of("z"), id_of("a"))[0].log_softmax(-1)
    found = sampled.logprobs[0]
    assert found.logprob == pytest.approx(float(expected[id_of("a")]), abs=1e-5)
    assert [token_id for token_id, _ in found.top] == [id_of("z")]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.0, 0.7, 2.0]))
def test_random_logits_give_what_the_schema_allows(
    compiler: GrammarCompiler, seed: int, temperature: float
) -> None:
    text = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
    sampler, sequence = Sampler(VOCAB_SIZE), bound(compiler, text, temperature=temperature, seed=1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(60):
        logits = torch.randn(1, VOCAB_SIZE, generator=generator) * 3
        # JSON allows whitespace anywhere: without this it is most of the drawn tokens.
        logits[0, [id_of(" "), 95]] -= 8
        logits[0, id_of('"')] += 4
        sampled = sampler.sample([sequence], logits)
        assert not sampled.broken and not sampled.failed
        sequence.token_ids += sampled.token_ids
        if sampled.complete or sampled.token_ids[0] in sequence.stop_ids:
            text = "".join("\n" if t == 95 else chr(t + 32) for t in sequence.token_ids[1:])
            answer = json.loads(text.removesuffix(chr(END_ID + 32)))
            assert set(answer) == {"name", "age"}
            assert isinstance(answer["name"], str) and isinstance(answer["age"], int)
            return


@given(seed=st.integers(0, 10_000), length=st.integers(0, 28))
@settings(max_examples=50, deadline=None)
def test_greedy_takes_the_likeliest_allowed_token(
    compiler: GrammarCompiler, seed: int, length: int
) -> None:
    text = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
    sequence = bound(compiler, text)
    assert sequence.grammar is not None
    for token_id in ids_of('{"name": "somebody", "age": 41')[:length]:
        sequence.grammar.advance(token_id)
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    scores = logits.clone()
    apply_masks(scores, [sequence], TorchDrawer())
    assert Sampler(VOCAB_SIZE).sample([sequence], logits).token_ids == [int(scores.argmax())]


OPEN, CLOSE, WORD = 1, 2, 3


@each_case(
    ("max_tokens", "start", "token_ids", "forced"),
    [
        # The prompt has opened the block, or the output opens it.
        (2, None, [WORD, WORD, CLOSE, WORD], [None, None, CLOSE, None, None]),
        (1, OPEN, [WORD, OPEN, WORD], [None, None, None, CLOSE]),
        (0, None, [CLOSE], [CLOSE, None]),
        (3, None, [WORD, WORD, CLOSE, WORD, WORD, WORD], [None] * 7),
        # A block that is opened again continues counting.
        (2, OPEN, [OPEN, WORD, CLOSE, OPEN, WORD], [None, None, None, None, None, CLOSE]),
    ],
)
def test_the_token_that_a_thinking_budget_forces(
    max_tokens: int, start: int | None, token_ids: list[int], forced: list[int | None]
) -> None:
    limit = ThinkingLimit(max_tokens=max_tokens, end_token_id=CLOSE, start_token_id=start)
    budget = ThinkingBudget(limit)
    found = [budget.forced_token]
    for token_id in token_ids:
        budget.advance(token_id)
        found.append(budget.forced_token)
    assert found == forced


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
