"""gpt-oss' channels: splits an answer into reasoning, text and tool calls.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
       header                thought              header                     answer

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

The prompt ends with ``<|start|>assistant``, so an answer begins in a header. A header that names a
recipient begins a call; it is handed on as one text, however the model wrote it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from inference.text.answers.parts import TokenKind
from inference.text.tokens.tokenizer import Tokenizer

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
BETWEEN_TEXTS = "\n\n"
"""Between two messages that are both shown: a preamble and the answer."""

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
    """The word ``analysis``."""


def find_channels(tokenizer: Tokenizer, template: str | None) -> HarmonyTokens | None:
    """``None`` for every model but those that speak so."""
    if template is None or CHANNEL not in template or MESSAGE not in template:
        return None
    texts = (CHANNEL, MESSAGE, START, END, CALL, THOUGHTS)
    found = [
        token_id for text in texts if (token_id := tokenizer.single_token_id(text)) is not None
    ]
    return HarmonyTokens(*found) if len(found) == len(texts) else None


class HarmonySplitter:
    """Splits one answer in the Harmony format. ``is_answering``: the prompt has begun the answer's
    own text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tokens: HarmonyTokens,
        *,
        is_answering: bool = False,
        reads_calls: bool = True,
    ) -> None:
        """``reads_calls``: a tool call parser reads the heads of calls."""
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._header: list[int] | None = None if is_answering else []
        """The part of a header that was read so far; ``None`` inside a message."""
        self._reads_calls = reads_calls
        self._is_first = True
        """Whether this is the answer's first header, which the answer may leave out."""
        self._is_thinking = False
        self._has_spoken = is_answering
        self._markup_text = ""

    def feed(self, token_id: int) -> TokenKind:
        if self._header is None:
            return self._in_message(token_id)
        if self._is_first and not self._goes_on(self._header, token_id):
            self._markup_text = self._text_of(self._header)
            self._header = None
            return self._in_message(token_id)
        if token_id != self._tokens.message:
            self._header.append(token_id)
            return TokenKind.MARKUP
        return self._end_header(self._header)

    def take_text(self) -> str:
        """What stands before the last token's own text, or for it: the head of a call, or the space
        between two texts."""
        text, self._markup_text = self._markup_text, ""
        return text

    def _in_message(self, token_id: int) -> TokenKind:
        tokens = self._tokens
        if token_id in (tokens.end, tokens.call, tokens.start, tokens.channel):
            self._header = [token_id]
            was_thinking, self._is_thinking = self._is_thinking, False
            return TokenKind.CLOSES if was_thinking else TokenKind.MARKUP
        if self._is_thinking:
            return TokenKind.THOUGHT
        self._has_spoken = True
        return TokenKind.ANSWER

    def _goes_on(self, header: list[int], token_id: int) -> bool:
        if token_id in (self._tokens.channel, self._tokens.start):
            self._is_first = False
            return True
        text = self._text_of([*header, token_id]).lstrip()
        return RECIPIENT.startswith(text) or text.startswith(RECIPIENT)

    def _text_of(self, token_ids: list[int]) -> str:
        return b"".join(map(self._tokenizer.bytes_of, token_ids)).decode(errors="replace")

    def _end_header(self, header: list[int]) -> TokenKind:
        text = self._text_of(header)
        self._header = None
        recipient, channel = _RECIPIENT.search(text), _CHANNEL_NAME.search(text)
        if recipient is not None:
            name = recipient.group(1).removeprefix(NAMESPACE)
            if self._reads_calls:
                self._markup_text = f"{CALL_HEAD}{name}{CALL_HEAD_END}"
        elif channel is not None and channel.group(1) == THOUGHTS:
            self._is_thinking = True
            return TokenKind.OPENS
        elif self._has_spoken:
            self._markup_text = BETWEEN_TEXTS
        return TokenKind.MARKUP
