"""Where a model thinks before it answers: the markers of a thinking block, found token by token.

    <think> ─OPENS─▶ token … ─THOUGHT─▶ </think> ─CLOSES─▶ token … ─ANSWER─▶

A block opens only while nothing but white space has been said; later the same token is what the
answer quotes. Some templates open the block inside the prompt: the answer then starts in it. Owns
token ids only; text is ``inference.text.choice_text``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from inference.text.tokenizer import Tokenizer

MARKER_PAIRS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Of Qwen, DeepSeek and most others; Magistral; Seed-OSS; OpenThinker; … Command A; Apertus."""


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    opens: str
    closes: str
    start_token_id: int
    end_token_id: int


def find_markers(tokenizer: Tokenizer, template: str | None) -> ReasoningMarkers | None:
    """The first pair of which each side is exactly one token; one that ``template`` mentions comes
    before the others."""
    found = []
    for opens, closes in MARKER_PAIRS:
        start, end = tokenizer.single_token_id(opens), tokenizer.single_token_id(closes)
        if start is not None and end is not None:
            found.append(ReasoningMarkers(opens, closes, start, end))
    mentioned = [markers for markers in found if template and markers.closes in template]
    return next(iter([*mentioned, *found]), None)


def opens_block(
    prompt: Sequence[int], markers: ReasoningMarkers | None, tokenizer: Tokenizer
) -> bool:
    """Whether the prompt ends with the opening marker, white space after it aside."""
    if markers is None:
        return False
    for token_id in reversed(prompt):
        if token_id == markers.start_token_id:
            return True
        if not tokenizer.bytes_of(token_id).isspace():
            return False
    return False


class TokenKind(Enum):
    """What one token of an answer is."""

    OPENS = "opens"
    THOUGHT = "thought"
    CLOSES = "closes"
    ANSWER = "answer"


class ThinkingSplitter:
    """For one answer. Without ``markers`` everything is answer."""

    def __init__(
        self, tokenizer: Tokenizer, markers: ReasoningMarkers | None, *, is_open: bool = False
    ) -> None:
        """``is_open``: the prompt has opened the block."""
        self._tokenizer = tokenizer
        self._markers = markers
        self._is_open = is_open
        self._may_open = markers is not None

    def feed(self, token_id: int) -> TokenKind:
        markers = self._markers
        if markers is None:
            return TokenKind.ANSWER
        if self._is_open:
            self._is_open = token_id != markers.end_token_id
            return TokenKind.THOUGHT if self._is_open else TokenKind.CLOSES
        if self._may_open and token_id == markers.start_token_id:
            self._is_open = True
            return TokenKind.OPENS
        self._may_open = self._may_open and self._is_blank(token_id)
        return TokenKind.ANSWER

    def _is_blank(self, token_id: int) -> bool:
        if token_id in self._tokenizer.special_token_ids:
            return True
        return not self._tokenizer.bytes_of(token_id).strip()
