"""Markers that are one token each, blocks that a prompt opens, and where a block may open."""

from __future__ import annotations

import itertools
from pathlib import Path

import tokenizers

from inference.text.answers.parts import TokenKind
from inference.text.answers.reasoning import (
    MARKER_PAIRS,
    ReasoningMarkers,
    ThinkingSplitter,
    find_markers,
    opens_block,
)
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case


def _with_tokens(directory: Path, *, special: bool, tokens: list[str]) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    add = backend.add_special_tokens if special else backend.add_tokens
    add(tokens)
    return Tokenizer(backend.to_str(), {})


@each_case("pair", MARKER_PAIRS)
@each_case("special", [True, False])
def test_every_known_pair_is_found(
    byte_level_dir: Path, pair: tuple[str, str], special: bool
) -> None:
    found = find_markers(_with_tokens(byte_level_dir, special=special, tokens=list(pair)), None)
    assert found is not None
    assert (found.opens, found.closes) == pair
    assert found.start_token_id != found.end_token_id


def test_both_sides_must_be_one_token(byte_level_dir: Path, sentencepiece_dir: Path) -> None:
    half = _with_tokens(byte_level_dir, special=True, tokens=["<think>"])
    for tokenizer in (Tokenizer.load(byte_level_dir), Tokenizer.load(sentencepiece_dir), half):
        assert find_markers(tokenizer, "<think></think>") is None


@each_case(
    ("template", "opens"),
    [("{{ '[THINK]' }}{{ '[/THINK]' }}", "[THINK]"), ("no markers", "<think>")],
)
def test_the_pair_that_the_template_names_comes_first(
    byte_level_dir: Path, template: str, opens: str
) -> None:
    tokens = ["<think>", "</think>", "[THINK]", "[/THINK]"]
    found = find_markers(_with_tokens(byte_level_dir, special=True, tokens=tokens), template)
    assert found is not None
    assert found.opens == opens


@each_case(
    ("prompt", "is_open"),
    [
        ("Hi<think>", True),
        ("Hi<think>\n", True),
        ("Hi<think>\n\n", True),
        ("Hi<think>\n\n</think>\n\n", False),
        ("Hi<think>so", False),
        ("Hi", False),
        ("", False),
    ],
)
def test_a_prompt_opens_the_block(
    tokenizer: Tokenizer, markers: ReasoningMarkers, prompt: str, is_open: bool
) -> None:
    token_ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert opens_block(token_ids, markers, tokenizer) is is_open
    assert not opens_block(token_ids, None, tokenizer)


def _kinds(tokenizer: Tokenizer, splitter: ThinkingSplitter, text: str) -> str:
    order = (TokenKind.OPENS, TokenKind.THOUGHT, TokenKind.CLOSES, TokenKind.ANSWER)
    letters = dict(zip(order, "(t)a", strict=True))
    ids = tokenizer.encode(text, add_special_tokens=False)
    kinds = [letters[splitter.feed(token_id, "")[0]] for token_id in ids]
    return "".join(letter for letter, _ in itertools.groupby(kinds))


@each_case(
    ("text", "is_open", "kinds"),
    [
        ("<think>so</think>yes", False, "(t)a"),
        ("\n<think>so</think>\nyes", False, "a(t)a"),
        ("<think></think><think>more</think>yes", False, "()(t)a"),
        ("yes, <think>is a marker</think>", False, "a"),
        ("yes</think>", False, "a"),
        ("<think>a<think>b</think>yes", False, "(t)a"),
        ("<think>for ever", False, "(t"),
        ("so</think>yes", True, "t)a"),
    ],
)
def test_where_tokens_belong(
    tokenizer: Tokenizer, markers: ReasoningMarkers, text: str, is_open: bool, kinds: str
) -> None:
    splitter = ThinkingSplitter(tokenizer, markers, is_open=is_open)
    assert _kinds(tokenizer, splitter, text) == kinds
    if not is_open:
        assert _kinds(tokenizer, ThinkingSplitter(tokenizer, None), text) == "a"
