"""Answers that a grammar allows, chosen at random byte by byte."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from inference.text.grammars.parts import grammar_text, json_part

END = 256


class _Bytes:
    """A tokenizer with a token for each byte."""

    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(END)), b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))


def answers(
    schema: Any, *, seed: int, num_walks: int, max_bytes: int = 60, preferred: str = ""
) -> Iterator[str]:
    """Returns those of ``num_walks`` answers that end within ``max_bytes``. ``preferred``
    characters are chosen more often."""
    matcher = LLMatcher(TOKENIZER, grammar_text([json_part(schema)]))
    assert not matcher.is_error(), matcher.get_error()
    chosen = random.Random(seed)
    for _ in range(num_walks):
        answer = _walk(matcher.deep_copy(), chosen, max_bytes, preferred.encode())
        if answer is not None:
            yield answer.decode()


def _walk(
    matcher: LLMatcher, chosen: random.Random, max_bytes: int, preferred: bytes
) -> bytes | None:
    answer = bytearray()
    mask = allocate_token_bitmask(1, END + 1)
    while len(answer) < max_bytes and not matcher.is_stopped():
        fill_next_token_bitmask(matcher, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        tokens = [int(token) for token in allowed if token < 128]
        if END in allowed and (not tokens or chosen.random() < 0.15):
            return bytes(answer)
        liked = [token for token in tokens if token in preferred]
        token = chosen.choice(liked if liked and chosen.random() < 0.6 else tokens)
        assert matcher.consume_token(token), matcher.get_error()
        answer.append(token)
    return bytes(answer) if matcher.is_stopped() and not matcher.is_error() else None
