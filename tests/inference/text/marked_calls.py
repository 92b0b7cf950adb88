"""A tool call form for tests: ``<call>name {"a": 1}</call>``, streamed, everything else text."""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolDefinition
from inference.text.answers.parts import CallArguments, CallStarted, Part, TextPart, ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer

OPENS, CLOSES = "<call>", "</call>"


class MarkedCallParser:
    def __init__(self) -> None:
        self._pending = ""
        self._in_call = False

    def feed(self, text: str) -> list[Part]:
        self._pending += text
        parts: list[Part] = []
        while True:
            marker = CLOSES if self._in_call else OPENS
            before, found, after = self._pending.partition(marker)
            if not found:
                return parts if self._in_call else [*parts, *self._text_before_marker()]
            parts += self._call(before) if self._in_call else _text(before)
            self._in_call, self._pending = not self._in_call, after

    def flush(self) -> list[Part]:
        rest = (OPENS if self._in_call else "") + self._pending
        self._pending, self._in_call = "", False
        return _text(rest)

    def _text_before_marker(self) -> list[Part]:
        """All but what could become the marker."""
        held = next(n for n in range(len(OPENS), -1, -1) if self._pending.endswith(OPENS[:n]))
        end = len(self._pending) - held
        text, self._pending = self._pending[:end], self._pending[end:]
        return _text(text)

    def _call(self, body: str) -> list[Part]:
        name, _, arguments = body.partition(" ")
        return [CallStarted(name), CallArguments(arguments or "{}")]


def _text(text: str) -> list[Part]:
    return [TextPart(text)] if text else []


class MarkedCalls:
    name = "marked"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset(self.marker_ids(tokenizer).values())

    def marker_ids(self, tokenizer: Tokenizer) -> dict[str, int]:
        ids = ((marker, tokenizer.single_token_id(marker)) for marker in (OPENS, CLOSES))
        return {marker: token_id for marker, token_id in ids if token_id is not None}

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return MarkedCallParser()
