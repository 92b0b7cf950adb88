"""Any split of a token stream gives one text: the tokenizer's own decode of the whole."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from inference.text.tokens.tokenizer import Detokenizer, Tokenizer


class Case:
    """One tokenizer and its reference."""

    def __init__(self, directory: Path) -> None:
        self.ours = Tokenizer.load(directory)
        self.reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def byte_level(byte_level_dir: Path) -> Case:
    return Case(byte_level_dir)


@pytest.fixture(scope="module")
def sentencepiece(sentencepiece_dir: Path) -> Case:
    return Case(sentencepiece_dir)


def _split(items: list[int], cuts: list[int]) -> list[list[int]]:
    borders = sorted({0, len(items), *(cut % (len(items) + 1) for cut in cuts)})
    return [items[start:end] for start, end in itertools.pairwise(borders)]


def _detokenize(tokenizer: Tokenizer, chunks: list[list[int]]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join(detokenizer.feed(chunk) for chunk in chunks) + detokenizer.flush()


@given(ids=st.lists(st.integers(0, 420)), cuts=st.lists(st.integers(0, 1000)))
def test_byte_level_equals_decode_for_any_ids(
    byte_level: Case, ids: list[int], cuts: list[int]
) -> None:
    """The ids may make no valid UTF-8, be special ones, or lie past the vocabulary."""
    assert _detokenize(byte_level.ours, _split(ids, cuts)) == byte_level.reference.decode(ids)


@given(text=st.text(), cuts=st.lists(st.integers(0, 1000)))
def test_sentencepiece_equals_decode_for_any_text(
    sentencepiece: Case, text: str, cuts: list[int]
) -> None:
    ids = sentencepiece.ours.encode(text, add_special_tokens=True)
    expected = sentencepiece.reference.decode(ids)
    assert _detokenize(sentencepiece.ours, _split(ids, cuts)) == expected


@given(ids=st.lists(st.integers(0, 300)), cuts=st.lists(st.integers(0, 1000)))
def test_sentencepiece_text_does_not_depend_on_the_split(
    sentencepiece: Case, ids: list[int], cuts: list[int]
) -> None:
    tokenizer = sentencepiece.ours
    assert _detokenize(tokenizer, _split(ids, cuts)) == _detokenize(tokenizer, [ids])


def test_a_character_is_never_split(byte_level: Case) -> None:
    detokenizer = Detokenizer(byte_level.ours)
    bytes_to_id = {byte_level.ours.bytes_of(i): i for i in range(byte_level.ours.vocab_size)}
    pieces = [detokenizer.feed([bytes_to_id[bytes([byte])]]) for byte in "🙂".encode()]
    assert pieces == ["", "", "", "🙂"]


def test_each_token_is_looked_at_once_and_only_an_unfinished_character_is_kept(
    byte_level: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a token costs the same however long the text before it is."""
    ids = byte_level.ours.encode("naïve 🙂 日本 " * 200, add_special_tokens=False)
    looked_up: list[int] = []
    bytes_of = Tokenizer.bytes_of

    def counting(self: Tokenizer, token_id: int) -> bytes:
        looked_up.append(token_id)
        return bytes_of(self, token_id)

    monkeypatch.setattr(Tokenizer, "bytes_of", counting)
    detokenizer, text = Detokenizer(byte_level.ours), ""
    for token_id in ids:
        text += detokenizer.feed([token_id])
        kept, _ = detokenizer._decoder.getstate()
        assert len(kept) < len("🙂".encode())
    assert looked_up == ids
    assert text == "naïve 🙂 日本 " * 200


def test_a_broken_character_shows_at_the_end(byte_level: Case) -> None:
    bytes_to_id = {byte_level.ours.bytes_of(i): i for i in range(byte_level.ours.vocab_size)}
    detokenizer = Detokenizer(byte_level.ours)
    assert detokenizer.feed([bytes_to_id[b"\xf0"]]) == ""
    assert detokenizer.flush() == "�"


def test_a_continuation_keeps_its_first_space(sentencepiece: Case) -> None:
    ids = sentencepiece.ours.encode("Paris", add_special_tokens=False)
    assert Detokenizer(sentencepiece.ours).feed(ids) == "Paris"
    assert Detokenizer(sentencepiece.ours, continues_text=True).feed(ids) == " Paris"
