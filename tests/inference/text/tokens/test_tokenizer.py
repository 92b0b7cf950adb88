"""Special tokens around prompts, and files that are not what they should be."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from inference.text.errors import TokenizerFilesError
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case


def _with_config(source: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(source, target)
    path = target / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return target


@each_case("add_special_tokens", [True, False])
def test_encodes_as_transformers_does(
    byte_level_dir: Path, sentencepiece_dir: Path, add_special_tokens: bool
) -> None:
    for directory in (byte_level_dir, sentencepiece_dir):
        reference = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
        ours = Tokenizer.load(directory)
        text = "The capital of Straße 🙂"
        assert ours.encode(text, add_special_tokens=add_special_tokens) == reference.encode(
            text, add_special_tokens=add_special_tokens
        )


def test_the_post_processor_puts_bos_before_a_prompt(sentencepiece_dir: Path) -> None:
    tokenizer = Tokenizer.load(sentencepiece_dir)
    assert tokenizer.encode("The", add_special_tokens=True)[0] == 1
    assert tokenizer.encode("The", add_special_tokens=False)[0] != 1


def test_the_config_overrules_the_post_processor(sentencepiece_dir: Path, tmp_path: Path) -> None:
    directory = _with_config(
        sentencepiece_dir, tmp_path / "t", add_bos_token=False, add_eos_token=True
    )
    token_ids = Tokenizer.load(directory).encode("The", add_special_tokens=True)
    assert token_ids[0] != 1
    assert token_ids[-1] == 2


def test_special_tokens_in_text_become_their_ids(byte_level_dir: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_dir)
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [1]
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.bytes_of(2) == b"<|im_end|>"


def test_ids_past_the_vocabulary_have_no_bytes(byte_level_dir: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_dir)
    assert tokenizer.bytes_of(tokenizer.vocab_size + 100) == b""


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFilesError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)


def test_a_broken_file_is_named(byte_level_dir: Path, tmp_path: Path) -> None:
    directory = _with_config(byte_level_dir, tmp_path / "t")
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerFilesError, match="not JSON"):
        Tokenizer.load(directory)


def test_an_unknown_decoder_is_refused(byte_level_dir: Path, tmp_path: Path) -> None:
    directory = _with_config(byte_level_dir, tmp_path / "t")
    path = directory / "tokenizer.json"
    definition = json.loads(path.read_text())
    definition["decoder"] = {
        "type": "CTC",
        "pad_token": "<pad>",
        "word_delimiter_token": "|",
        "cleanup": True,
    }
    path.write_text(json.dumps(definition))
    with pytest.raises(TokenizerFilesError, match="CTC"):
        Tokenizer.load(directory)


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


def test_a_bos_that_is_added_must_be_named(byte_level_dir: Path, tmp_path: Path) -> None:
    directory = _with_config(byte_level_dir, tmp_path / "t", add_bos_token=True, bos_token=None)
    with pytest.raises(TokenizerFilesError, match="bos_token"):
        Tokenizer.load(directory)


def test_a_long_prompt_does_not_stop_other_threads(byte_level_dir: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_dir)
    num_wakes, is_done = 0, threading.Event()

    def wake_often() -> None:
        nonlocal num_wakes
        while not is_done.wait(0.001):
            num_wakes += 1

    def wakes_meanwhile() -> int:
        before = num_wakes
        tokenizer.encode("The capital of France is Paris. " * 10_000, add_special_tokens=False)
        return num_wakes - before

    sleeper = threading.Thread(target=wake_often)
    sleeper.start()
    try:
        # A call that keeps the interpreter lock lets it wake once or twice, at its own borders. On
        # a busy machine it may not get to run by itself, and in some of many calls it does.
        assert any(wakes_meanwhile() > 5 for _ in range(50))
    finally:
        is_done.set()
        sleeper.join()
