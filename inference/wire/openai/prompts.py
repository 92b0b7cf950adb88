"""Prompts of the completions and embeddings dialects: text or token ids, one or several. Pure."""

from __future__ import annotations

from typing import Any

from inference.protocol.generation import TextInput, TokensInput
from inference.wire.common.fields import MAX_TOKEN_ID, Check, array, integer, text, wrong_type

_text = text(min_chars=1)
_each_token_id = array(integer(0, MAX_TOKEN_ID), min_items=1)


def prompts(max_prompts: int) -> Check:
    """A string, an array of token ids, or an array of strings or of such arrays: the first item
    decides which. None may be empty."""
    texts = array(_text, max_prompts, min_items=1)
    lists_of_token_ids = array(token_ids, max_prompts)

    def check(value: Any, path: str) -> TextInput | TokensInput:
        if isinstance(value, str):
            return TextInput(texts=[_text(value, path)])
        if not isinstance(value, list):
            raise wrong_type(path, "a string or an array", value)
        match value[:1]:
            case [list()]:
                return TokensInput(prompts=lists_of_token_ids(value, path))
            case [int()]:
                return TokensInput(prompts=[token_ids(value, path)])
        return TextInput(texts=texts(value, path))

    return check


def token_ids(value: Any, path: str) -> list[int]:
    """Reads token ids, at least one. A prompt may have 10^5 of them, so they are looked at one by
    one, which takes as many paths, only to name one that is wrong."""
    are_integers = isinstance(value, list) and set(map(type, value)) == {int}
    if are_integers and min(value) >= 0 and max(value) <= MAX_TOKEN_ID:
        return value  # type: ignore[no-any-return]
    checked: list[int] = _each_token_id(value, path)
    return checked
