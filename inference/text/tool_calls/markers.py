"""A format's markers in a tokenizer: some are one token, others are spelled out."""

from __future__ import annotations

from collections.abc import Iterable

from inference.text.tokens.tokenizer import Tokenizer


def marker_token_id(tokenizer: Tokenizer, marker: str) -> int | None:
    """The one token that is this marker; ``None`` where it is spelled out."""
    token_ids = tokenizer.encode(marker, add_special_tokens=False)
    if len(token_ids) != 1 or tokenizer.bytes_of(token_ids[0]) != marker.encode():
        return None
    return token_ids[0]


def special_marker_ids(tokenizer: Tokenizer, markers: Iterable[str]) -> frozenset[int]:
    """The ids of markers that are special tokens, whose text is left out unless it is asked for."""
    token_ids = (marker_token_id(tokenizer, marker) for marker in markers)
    return frozenset(token_id for token_id in token_ids if token_id in tokenizer.special_token_ids)
