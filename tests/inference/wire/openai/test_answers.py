"""Padding makes chunks equally long and changes nothing else of them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from inference.wire.openai.answers import BLOCK_BYTES, padded

MARK = b',"choices":[{'


def _frame(text: str) -> bytes:
    chunk = {"id": "c", "choices": [{"delta": {"content": text}}]}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


@given(texts=st.lists(st.text(max_size=80), max_size=5))
def test_chunks_are_whole_blocks_and_give_the_same(texts: list[str]) -> None:
    plain = b"".join(map(_frame, texts)) + b"data: [DONE]\n\n"
    *frames, done, rest = padded(plain, marks=MARK).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    for frame, text in zip(frames, texts, strict=True):
        assert (len(frame) + 2) % BLOCK_BYTES == 0
        chunk = json.loads(frame.removeprefix(b"data: "))
        assert isinstance(chunk.pop("obfuscation"), str)
        assert chunk["choices"][0]["delta"]["content"] == text


def test_words_of_few_letters_are_alike() -> None:
    sizes = {len(padded(_frame("x" * length), marks=MARK)) for length in range(8)}
    assert len(sizes) == 1


def test_nothing_stays_nothing() -> None:
    assert padded(b"", marks=MARK) == b""
