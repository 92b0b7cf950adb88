"""Special tokens around prompts, files that are not what they should be, and any split of a token
stream, whose text is the tokenizer's own decode of the whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from inference.text.errors import TokenizerFilesError, TooManyTokensError
from inference.text.tokenizer import MAX_BYTES_PER_TOKEN, Detokenizer, Tokenizer
from tests.inference.text.marked_calls import split


@pytest.fixture(scope="module")
def byte_level(byte_level_dir: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_dir)


@pytest.fixture(scope="module")
def sentencepiece(sentencepiece_dir: Path) -> Tokenizer:
    return Tokenizer.load(sentencepiece_dir)


def _with_config(source: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(source, target)
    path = target / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return target


def test_encodes_as_transformers_does_and_the_config_overrules_the_post_processor(
    byte_level_dir: Path, sentencepiece_dir: Path, tmp_path: Path
) -> None:
    text = "The capital of Straße 🙂"
    for special in (True, False):
        for directory in (byte_level_dir, sentencepiece_dir):
            reference = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
            ids = Tokenizer.load(directory).encode(text, add_special_tokens=special)
            assert ids == reference.encode(text, add_special_tokens=special)
        assert (ids[0] == 1) is special, "the post-processor's bos"
    changes = {"add_bos_token": False, "add_eos_token": True}
    directory = _with_config(sentencepiece_dir, tmp_path / "t", **changes)
    ids = Tokenizer.load(directory).encode("The", add_special_tokens=True)
    assert ids[0] != 1 and ids[-1] == 2


def test_special_tokens_become_their_ids_and_too_many_tokens_are_refused(
    byte_level: Tokenizer,
) -> None:
    tokenizer = byte_level
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [1]
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.bytes_of(2) == b"<|im_end|>"
    assert tokenizer.bytes_of(tokenizer.vocab_size + 100) == b""
    given = {"add_special_tokens": False}
    ids = tokenizer.encode("The capital", **given)
    assert tokenizer.encode("The capital", max_tokens=len(ids), **given) == ids
    for text, most, words in (
        ("The capital", len(ids) - 1, str(len(ids))),
        ("é" * MAX_BYTES_PER_TOKEN, 1, "at least 2"),
    ):
        with pytest.raises(TooManyTokensError, match=f"^{words} tokens"):
            tokenizer.encode(text, max_tokens=most, **given)
    pair = tokenizer.encode_pair(("The capital", "of"), max_tokens=99)
    assert pair[: len(ids)] == ids and len(pair) > len(ids)
    with pytest.raises(TooManyTokensError, match=f"^{len(pair)} tokens"):
        tokenizer.encode_pair(("The capital", "of"), max_tokens=len(pair) - 1)
    assert len(tokenizer.encode_start("é" * 9000, 5)) == 5


CTC = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}


def test_files_that_cannot_be_used_are_refused(byte_level_dir: Path, tmp_path: Path) -> None:
    definition = json.loads((byte_level_dir / "tokenizer.json").read_text())
    for number, (name, changed, problem) in enumerate(
        (
            ("tokenizer.json", None, r"tokenizer\.json is missing"),
            ("tokenizer_config.json", "{", "not JSON"),
            ("tokenizer.json", json.dumps(definition | {"decoder": CTC}), "CTC"),
            ("tokenizer_config.json", '{"add_bos_token": true}', "bos_token"),
        )
    ):
        file = _with_config(byte_level_dir, tmp_path / f"{number}") / name
        file.unlink()
        if changed is not None:
            file.write_text(changed)
        with pytest.raises(TokenizerFilesError, match=problem):
            Tokenizer.load(file.parent)


def test_the_word_pieces_of_encoders(tmp_path: Path) -> None:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "sing", "##ing"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("singing", add_special_tokens=True) == [1, 3, 4, 2]
    assert tokenizer.bytes_of(3) + tokenizer.bytes_of(4) == b" singing"


def _decode(directory: Path, ids: list[int]) -> str:
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).decode(ids)


def _detokenize(tokenizer: Tokenizer, chunks: list[list[int]]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join(detokenizer.feed(chunk) for chunk in chunks) + detokenizer.flush()


@given(ids=st.lists(st.integers(0, 420)), cuts=st.lists(st.integers(0, 1000)))
def test_byte_level_equals_decode_for_any_ids(
    byte_level: Tokenizer, byte_level_dir: Path, ids: list[int], cuts: list[int]
) -> None:
    """The ids may make no valid UTF-8, be special ones, or lie past the vocabulary."""
    assert _detokenize(byte_level, split(ids, cuts)) == _decode(byte_level_dir, ids)


@given(text=st.text(), ids=st.lists(st.integers(0, 300)), cuts=st.lists(st.integers(0, 1000)))
def test_sentencepiece_equals_decode_for_any_text_andsplit(
    sentencepiece: Tokenizer, sentencepiece_dir: Path, text: str, ids: list[int], cuts: list[int]
) -> None:
    encoded = sentencepiece.encode(text, add_special_tokens=True)
    expected = _decode(sentencepiece_dir, encoded)
    assert _detokenize(sentencepiece, split(encoded, cuts)) == expected
    assert _detokenize(sentencepiece, split(ids, cuts)) == _detokenize(sentencepiece, [ids])


def test_a_continuation_keeps_its_first_space(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("Paris", add_special_tokens=False)
    assert Detokenizer(sentencepiece).feed(ids) == "Paris"
    assert Detokenizer(sentencepiece, continues_text=True).feed(ids) == " Paris"
