"""A token's log probability, as text for clients."""

from __future__ import annotations

from inference.protocol.events import TextLogprob
from inference.protocol.sampling import TokenLogprob
from inference.text.tokens.tokenizer import Tokenizer


def text_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> TextLogprob:
    def text_of(token_id: int) -> str:
        return tokenizer.bytes_of(token_id).decode("utf-8", errors="replace")

    return TextLogprob(
        token=text_of(entry.token_id),
        token_bytes=tokenizer.bytes_of(entry.token_id),
        logprob=entry.logprob,
        top=[
            (text_of(token_id), tokenizer.bytes_of(token_id), logprob)
            for token_id, logprob in entry.top
        ],
    )
