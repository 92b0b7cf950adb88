"""Finds where a model thinks before it answers: the markers of a thinking block, token by token.

    <think> ─OPENS─▶ token … ─THOUGHT─▶ </think> ─CLOSES─▶ token … ─ANSWER─▶

A block opens only while the answer is empty but for white space; later the same token is a
quotation in the answer. Some templates open the block inside the prompt: the answer then starts in
it. Owns token ids only; text is ``inference.text.answers.choice_text``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inference.text.answers.harmony import (
    CHANNEL,
    END,
    MESSAGE,
    THOUGHTS,
    HarmonySplitter,
    HarmonyTokens,
    find_channels,
)
from inference.text.answers.parts import TokenKind
from inference.text.tokens.tokenizer import Tokenizer

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
    ("◁think▷", "◁/think▷"),
    ("<|channel>", "<channel|>"),
)
"""The markers of Qwen, DeepSeek, GLM and most others; Magistral; Seed-OSS; OpenThinker; … Command
A; Apertus; Kimi-VL; Gemma 4."""
LABELS = {"<|channel>": "thought"}
"""Opening marker -> the label behind it that names the kind of block."""


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    opens: str
    closes: str
    start_token_id: int
    end_token_id: int
    label: str = ""
    """Words behind the opening marker that belong to it."""
    channels: HarmonyTokens | None = None
    """The channels of gpt-oss, whose answers are messages in channels: the start token is the name
    of a channel then."""

    @property
    def follows_token_id(self) -> int | None:
        """What the start token must come right after; ``None``: anything."""
        return None if self.channels is None else self.channels.channel


def find_markers(tokenizer: Tokenizer, template: str | None) -> ReasoningMarkers | None:
    """The first pair of which each side is exactly one token; one that ``template`` mentions comes
    before the others."""
    if (channels := find_channels(tokenizer, template)) is not None:
        opens = f"{CHANNEL}{THOUGHTS}{MESSAGE}"
        return ReasoningMarkers(opens, END, channels.thoughts, channels.end, channels=channels)
    found = []
    for opens, closes in MARKER_PAIRS:
        start, end = tokenizer.single_token_id(opens), tokenizer.single_token_id(closes)
        if start is not None and end is not None:
            found.append(ReasoningMarkers(opens, closes, start, end, LABELS.get(opens, "")))
    mentioned = [markers for markers in found if template and markers.closes in template]
    return next(iter([*mentioned, *found]), None)


def opens_block(
    prompt: Sequence[int], markers: ReasoningMarkers | None, tokenizer: Tokenizer
) -> bool:
    """Whether the prompt ends with the opening marker, its label and white space after it aside."""
    if markers is None or markers.channels is not None:
        return False
    behind = b""
    for token_id in reversed(prompt):
        if token_id == markers.start_token_id:
            return True
        behind = tokenizer.bytes_of(token_id) + behind
        if not markers.label.encode().endswith(behind.rstrip()):
            return False
    return False


class Splitter(Protocol):
    def feed(self, token_id: int) -> TokenKind: ...
    def take_text(self) -> str:
        """Text that comes before the last token's own."""
        ...


def splitter(
    tokenizer: Tokenizer,
    markers: ReasoningMarkers | None,
    *,
    is_open: bool = False,
    is_answering: bool = False,
    reads_calls: bool = True,
) -> Splitter:
    """Returns the splitter for one answer. ``is_open``: the prompt has opened the block.
    ``is_answering``: it has begun the answer."""
    if markers is None or markers.channels is None:
        return ThinkingSplitter(tokenizer, markers, is_open=is_open)
    return HarmonySplitter(
        tokenizer, markers.channels, is_answering=is_answering, reads_calls=reads_calls
    )


class ThinkingSplitter:
    """Splits one answer's thinking from the rest. Without ``markers`` everything is answer."""

    def __init__(
        self, tokenizer: Tokenizer, markers: ReasoningMarkers | None, *, is_open: bool = False
    ) -> None:
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

    def take_text(self) -> str:
        return ""

    def _is_blank(self, token_id: int) -> bool:
        if token_id in self._tokenizer.special_token_ids:
            return True
        return not self._tokenizer.bytes_of(token_id).strip()
