"""A format's markers in a tokenizer: some are one special token, others are spelled out."""

from __future__ import annotations

from collections.abc import Iterable

from inference.text.tokenizer import Tokenizer


def special_token_id(tokenizer: Tokenizer, marker: str) -> int | None:
    """The special token that is this marker; ``None`` where the marker is ordinary text."""
    token_ids = tokenizer.encode(marker, add_special_tokens=False)
    if len(token_ids) != 1 or token_ids[0] not in tokenizer.special_token_ids:
        return None
    return token_ids[0] if tokenizer.bytes_of(token_ids[0]) == marker.encode() else None


def special_token_ids(tokenizer: Tokenizer, markers: Iterable[str]) -> frozenset[int]:
    token_ids = (special_token_id(tokenizer, marker) for marker in markers)
    return frozenset(token_id for token_id in token_ids if token_id is not None)
