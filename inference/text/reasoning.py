"""Finds where a model thinks before it answers, by the tokens that mark a thinking block.

    <think> ─OPENS─▶ token … ─THOUGHT─▶ </think> ─CLOSES─▶ token … ─ANSWER─▶

A block opens only while the answer is empty but for white space; later the same token is a
quotation in the answer. Some templates open the block inside the prompt.

gpt-oss speaks in channels:

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
       header                thought              header                     answer

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

The prompt ends with ``<|start|>assistant``, so an answer begins in a header. A header that names a
recipient begins a call; it is passed on in one form, however the model wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from inference.text.tokenizer import Tokenizer


class TokenKind(Enum):
    OPENS = "opens"
    THOUGHT = "thought"
    CLOSES = "closes"
    ANSWER = "answer"
    MARKUP = "markup"
    """Belongs to the format, between messages; it is not shown."""


Run = tuple[TokenKind, str]
"""Text of one kind; of a marker, its spelling."""

CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
START = "<|start|>"
END = "<|end|>"
CALL = "<|call|>"
CONSTRAIN = "<|constrain|>"
THOUGHTS = "analysis"
ROLE = "assistant"
NAMESPACE = "functions."
CALL_HEAD = f"{CHANNEL}commentary to="
CALL_HEAD_END = f" {CONSTRAIN}json{MESSAGE}"
ANSWER_HEAD = f"{CHANNEL}final{MESSAGE}"
THOUGHT_HEAD = f"{CHANNEL}{THOUGHTS}{MESSAGE}"
BETWEEN_TEXTS = "\n\n"
"""Separates two messages that are both shown: a preamble and the answer."""

RECIPIENT = "to="
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


@dataclass(frozen=True, slots=True)
class HarmonyTokens:
    channel: int
    message: int
    start: int
    end: int
    call: int
    thoughts: int
    """Token of the word ``analysis``."""


def find_channels(tokenizer: Tokenizer, template: str | None) -> HarmonyTokens | None:
    if template is None or CHANNEL not in template or MESSAGE not in template:
        return None
    texts = (CHANNEL, MESSAGE, START, END, CALL, THOUGHTS)
    found = [
        token_id for text in texts if (token_id := tokenizer.single_token_id(text)) is not None
    ]
    return HarmonyTokens(*found) if len(found) == len(texts) else None


class HarmonySplitter:
    """``is_answering``: the prompt has begun the answer's own text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tokens: HarmonyTokens,
        *,
        is_answering: bool = False,
        reads_calls: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._header: list[int] | None = None if is_answering else []
        """The header so far; ``None`` inside a message."""
        self._reads_calls = reads_calls
        self._is_first = True
        """The answer may leave out its first header."""
        self._is_thinking = False
        self._has_spoken = is_answering

    def feed(self, token_id: int, text: str) -> tuple[TokenKind, list[Run]]:
        if self._header is None:
            return self._in_message(token_id, text)
        if self._is_first and not self._goes_on(self._header, token_id):
            before = self._text_of(self._header)
            self._header = None
            kind, runs = self._in_message(token_id, text)
            return kind, [(TokenKind.ANSWER, before), *runs]
        if token_id != self._tokens.message:
            self._header.append(token_id)
            return TokenKind.MARKUP, []
        return self._end_header(self._text_of(self._header))

    def flush(self, text: str) -> list[Run]:
        kind = TokenKind.THOUGHT if self._is_thinking else TokenKind.ANSWER
        return [(kind, text)] if self._header is None else []

    def _in_message(self, token_id: int, text: str) -> tuple[TokenKind, list[Run]]:
        tokens = self._tokens
        if token_id in (tokens.end, tokens.call, tokens.start, tokens.channel):
            self._header = [token_id]
            kind = TokenKind.CLOSES if self._is_thinking else TokenKind.MARKUP
            self._is_thinking, text = False, END
        elif self._is_thinking:
            kind = TokenKind.THOUGHT
        else:
            kind, self._has_spoken = TokenKind.ANSWER, True
        return kind, [(kind, text)]

    def _goes_on(self, header: list[int], token_id: int) -> bool:
        if token_id in (self._tokens.channel, self._tokens.start):
            self._is_first = False
            return True
        text = self._text_of([*header, token_id]).lstrip()
        return RECIPIENT.startswith(text) or text.startswith(RECIPIENT)

    def _text_of(self, token_ids: list[int]) -> str:
        return b"".join(map(self._tokenizer.bytes_of, token_ids)).decode(errors="replace")

    def _end_header(self, text: str) -> tuple[TokenKind, list[Run]]:
        self._header = None
        recipient, channel = _RECIPIENT.search(text), _CHANNEL_NAME.search(text)
        shown = ""
        if recipient is not None:
            name = recipient.group(1).removeprefix(NAMESPACE)
            shown = f"{CALL_HEAD}{name}{CALL_HEAD_END}" if self._reads_calls else ""
        elif channel is not None and channel.group(1) == THOUGHTS:
            self._is_thinking = True
            return TokenKind.OPENS, [(TokenKind.OPENS, THOUGHT_HEAD)]
        elif self._has_spoken:
            shown = BETWEEN_TEXTS
        return TokenKind.MARKUP, [(TokenKind.ANSWER, shown)]


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
"""Qwen, DeepSeek, GLM and most others; Magistral; Seed-OSS; OpenThinker; … Command A; Apertus;
Kimi-VL; Gemma 4."""
LABELS = {"<|channel>": "thought"}


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    opens: str
    closes: str
    start_token_id: int
    end_token_id: int
    label: str = ""
    """This text behind the opening marker belongs to it."""
    channels: HarmonyTokens | None = None

    @property
    def follows_token_id(self) -> int | None:
        """The text that the start token must follow; ``None``: any."""
        return None if self.channels is None else self.channels.channel


def find_markers(tokenizer: Tokenizer, template: str | None) -> ReasoningMarkers | None:
    """The first pair of single tokens; one that ``template`` mentions comes before the others."""
    if (channels := find_channels(tokenizer, template)) is not None:
        return ReasoningMarkers(
            THOUGHT_HEAD, END, channels.thoughts, channels.end, channels=channels
        )
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


class ThinkingSplitter:
    def __init__(
        self, tokenizer: Tokenizer, markers: ReasoningMarkers | None, *, is_open: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._markers = markers
        self._is_open = is_open
        self._may_open = markers is not None

    def feed(self, token_id: int, text: str) -> tuple[TokenKind, list[Run]]:
        kind = self._kind(token_id)
        if self._markers is not None and kind in (TokenKind.OPENS, TokenKind.CLOSES):
            text = self._markers.opens if kind is TokenKind.OPENS else self._markers.closes
        return kind, [(kind, text)]

    def flush(self, text: str) -> list[Run]:
        return [(TokenKind.THOUGHT if self._is_open else TokenKind.ANSWER, text)]

    def _kind(self, token_id: int) -> TokenKind:
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
