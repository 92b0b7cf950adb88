"""Any split of a token stream gives one text: the tokenizer's own decode of the whole."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from inference.text.tokens.tokenizer import Detokenizer, Tokenizer


@pytest.fixture(scope="module")
def byte_level(byte_level_dir: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_dir)


@pytest.fixture(scope="module")
def sentencepiece(sentencepiece_dir: Path) -> Tokenizer:
    return Tokenizer.load(sentencepiece_dir)


def _decode(directory: Path, ids: list[int]) -> str:
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).decode(ids)


def _split(items: list[int], cuts: list[int]) -> list[list[int]]:
    borders = sorted({0, len(items), *(cut % (len(items) + 1) for cut in cuts)})
    return [items[start:end] for start, end in itertools.pairwise(borders)]


def _detokenize(tokenizer: Tokenizer, chunks: list[list[int]]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join(detokenizer.feed(chunk) for chunk in chunks) + detokenizer.flush()


@given(ids=st.lists(st.integers(0, 420)), cuts=st.lists(st.integers(0, 1000)))
def test_byte_level_equals_decode_for_any_ids(
    byte_level: Tokenizer, byte_level_dir: Path, ids: list[int], cuts: list[int]
) -> None:
    """The ids may make no valid UTF-8, be special ones, or lie past the vocabulary."""
    assert _detokenize(byte_level, _split(ids, cuts)) == _decode(byte_level_dir, ids)


@given(text=st.text(), ids=st.lists(st.integers(0, 300)), cuts=st.lists(st.integers(0, 1000)))
def test_sentencepiece_equals_decode_for_any_text_and_split(
    sentencepiece: Tokenizer, sentencepiece_dir: Path, text: str, ids: list[int], cuts: list[int]
) -> None:
    encoded = sentencepiece.encode(text, add_special_tokens=True)
    expected = _decode(sentencepiece_dir, encoded)
    assert _detokenize(sentencepiece, _split(encoded, cuts)) == expected
    assert _detokenize(sentencepiece, _split(ids, cuts)) == _detokenize(sentencepiece, [ids])


def test_a_character_is_never_split_and_a_broken_one_shows_at_the_end(
    byte_level: Tokenizer,
) -> None:
    detokenizer = Detokenizer(byte_level)
    bytes_to_id = {byte_level.bytes_of(i): i for i in range(byte_level.vocab_size)}
    pieces = [detokenizer.feed([bytes_to_id[bytes([byte])]]) for byte in "🙂".encode()]
    assert pieces == ["", "", "", "🙂"]
    assert detokenizer.feed([bytes_to_id[b"\xf0"]]) == ""
    assert detokenizer.flush() == "�"


def test_a_continuation_keeps_its_first_space(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("Paris", add_special_tokens=False)
    assert Detokenizer(sentencepiece).feed(ids) == "Paris"
    assert Detokenizer(sentencepiece, continues_text=True).feed(ids) == " Paris"
