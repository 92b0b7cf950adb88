"""Token ids of one sequence to text, as they come. Never splits a character.

    feed([...]) -> whole characters so far      flush() -> the rest, broken bytes as U+FFFD

The pieces joined equal the tokenizer's own decode of all ids with special tokens skipped; one
exception: when a sentencepiece model writes bytes that are no character, the valid characters
beside them are kept, where the tokenizer's decode replaces the whole run of bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from inference.text.tokens.token_bytes import LeadingSpace
from inference.text.tokens.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Constant work per token: bytes are looked up, and only an unfinished character waits."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        continues_text: bool = False,
        shown_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """``continues_text``: the tokens continue a text, so that the space with which a
        sentencepiece model starts a word belongs to it. ``shown_token_ids``: special tokens that
        are written out all the same."""
        self._tokenizer = tokenizer
        special = tokenizer.special_token_ids
        self._hidden_token_ids = special - shown_token_ids if shown_token_ids else special
        self._decoder = _Utf8Decoder(errors="replace")
        self._leading_space = LeadingSpace.KEEP if continues_text else tokenizer.leading_space

    def feed(self, token_ids: Iterable[int]) -> str:
        """Special tokens have no text, but for the shown ones."""
        return self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._hidden_token_ids:
            return b""
        data = self._tokenizer.bytes_of(token_id)
        if self._leading_space is LeadingSpace.KEEP or not data:
            return data
        drop_one = self._leading_space is LeadingSpace.DROP_ONE
        self._leading_space = LeadingSpace.KEEP
        return data.removeprefix(b" ") if drop_one else data.replace(b" ", b"")
