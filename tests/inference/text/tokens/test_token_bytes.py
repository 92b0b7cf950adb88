"""A text never has fewer tokens than the bound by its size; an unknown tokenizer has no bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.errors import TooManyTokensError
from inference.text.tokens.token_bytes import most_bytes_per_token
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case

TEXTS = st.text(max_size=60) | st.sampled_from(
    [" " * 40, "The capital of France is Paris. " * 3, "\u1112\u1161\u11ab" * 9, "🙂" * 9]
)


@pytest.fixture(scope="module")
def families(byte_level_dir: Path, thinking_dir: Path, sentencepiece_dir: Path) -> list[Tokenizer]:
    directories = (byte_level_dir, thinking_dir, sentencepiece_dir)
    definition = _definition(byte_level_dir) | {"normalizer": {"type": "NFC"}}
    return [*map(Tokenizer.load, directories), Tokenizer(json.dumps(definition), {})]


def _definition(directory: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((directory / "tokenizer.json").read_text())
    return parsed


@given(text=TEXTS, which=st.integers(0, 3))
def test_no_text_has_fewer_tokens(families: list[Tokenizer], text: str, which: int) -> None:
    tokenizer = families[which]
    assert tokenizer.most_bytes_per_token is not None
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
    assert bool(text) <= tokenizer.least_tokens(text) <= num_tokens


def test_the_bound_is_the_longest_token(families: list[Tokenizer]) -> None:
    plain, *_, composing = families
    longest = max(len(plain.bytes_of(token_id)) for token_id in range(plain.vocab_size))
    assert plain.most_bytes_per_token == longest
    assert composing.most_bytes_per_token == 3 * longest
    assert plain.least_tokens("é" * longest) == 2


@each_case(
    "change",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": {"type": "Split", "behavior": "Removed", "pattern": {"String": " "}}},
        {"pre_tokenizer": None},
        {"model": {"type": "WordPiece", "vocab": {}}},
        {"added_tokens": [{"content": "<|end|>", "rstrip": True}]},
    ],
)
def test_tokenizers_that_may_drop_text_have_no_bound(
    byte_level_dir: Path, change: dict[str, Any]
) -> None:
    definition = _definition(byte_level_dir)
    assert most_bytes_per_token(definition, [b"abc"]) == 3
    assert most_bytes_per_token(definition | change, [b"abc"]) is None


def test_ids_beyond_what_is_wanted_are_never_made(byte_level_dir: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_dir)
    ids = tokenizer.encode("The capital", add_special_tokens=False)
    assert tokenizer.encode("The capital", add_special_tokens=False, max_tokens=len(ids)) == ids
    with pytest.raises(TooManyTokensError) as refused:
        tokenizer.encode("The capital", add_special_tokens=False, max_tokens=len(ids) - 1)
    assert refused.value.num_tokens == len(ids)
