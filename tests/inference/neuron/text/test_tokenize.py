"""Tokens are those that the same prompt would be answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text import tokenize
from inference.neuron.text.tokenize import tokenized
from inference.protocol.events import Tokenized
from inference.protocol.generation import (
    ChatInput,
    TextInput,
    TokenizeRequest,
    TokensInput,
)
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import a_chat, prepared


def _tokenized(
    directory: Path, given: ChatInput | TextInput | TokensInput, **more: bool
) -> Tokenized:
    request = TokenizeRequest(model="m", input=given, **more)
    return tokenized("r", request, model_text(directory))


def test_a_text_with_and_without_special_tokens(sentencepiece_dir: Path) -> None:
    plain = _tokenized(sentencepiece_dir, TextInput(texts=["The"]))
    surrounded = _tokenized(sentencepiece_dir, TextInput(texts=["The"]), adds_special_tokens=True)
    assert surrounded.token_ids == [1, *plain.token_ids]
    assert plain.context_tokens == 100


def test_a_chat_is_what_answering_it_computes(byte_level_dir: Path) -> None:
    answered = prepared(model_text(byte_level_dir), a_chat()).prompts[0]
    assert _tokenized(byte_level_dir, a_chat()).token_ids == answered


def test_there_and_back(byte_level_dir: Path) -> None:
    there = _tokenized(byte_level_dir, TextInput(texts=["The cat"]), shows_texts=True)
    assert "".join(there.texts or []) == "The cat"
    back = _tokenized(byte_level_dir, TokensInput(prompts=[there.token_ids]))
    assert back.text == "The cat"


def test_what_is_refused(byte_level_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _tokenized(byte_level_dir, TokensInput(prompts=[[10**6]]))
    assert refused.value.failure.code == "bad_token_id"
    monkeypatch.setattr(tokenize, "MAX_RETURNED_TOKENS", 2)
    with pytest.raises(RequestRefusedError, match="at most 2"):
        _tokenized(byte_level_dir, TextInput(texts=["The cat sat on the mat"]))
