"""Special tokens around prompts, and files that are not what they should be."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from inference.text.errors import TokenizerFilesError, TooManyTokensError
from inference.text.tokens.tokenizer import MAX_BYTES_PER_TOKEN, Tokenizer
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
    text, given = "The capital of Straße 🙂", {"add_special_tokens": add_special_tokens}
    for directory in (byte_level_dir, sentencepiece_dir):
        reference = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
        assert Tokenizer.load(directory).encode(text, **given) == reference.encode(text, **given)
    ids = Tokenizer.load(sentencepiece_dir).encode(text, **given)
    assert (ids[0] == 1) is add_special_tokens, "the post-processor's bos"


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
    assert tokenizer.bytes_of(tokenizer.vocab_size + 100) == b""


def test_more_tokens_than_are_wanted_are_refused(byte_level_dir: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_dir)
    given = {"add_special_tokens": False}
    ids = tokenizer.encode("The capital", **given)
    assert tokenizer.encode("The capital", max_tokens=len(ids), **given) == ids
    for text, most, words in (
        ("The capital", len(ids) - 1, str(len(ids))),
        ("é" * MAX_BYTES_PER_TOKEN, 1, "at least 2"),
    ):
        with pytest.raises(TooManyTokensError, match=f"^{words} tokens"):
            tokenizer.encode(text, max_tokens=most, **given)
    assert len(tokenizer.encode_start("é" * 9000, 5)) == 5


CTC = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}


@each_case(
    ("name", "change", "problem"),
    [
        ("tokenizer.json", lambda _: None, r"tokenizer\.json is missing"),
        ("tokenizer_config.json", lambda _: "{", "not JSON"),
        ("tokenizer.json", lambda text: json.dumps(json.loads(text) | {"decoder": CTC}), "CTC"),
        ("tokenizer_config.json", lambda _: '{"add_bos_token": true}', "bos_token"),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    byte_level_dir: Path,
    tmp_path: Path,
    name: str,
    change: Callable[[str], str | None],
    problem: str,
) -> None:
    file = _with_config(byte_level_dir, tmp_path / "t") / name
    changed = change(file.read_text())
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
