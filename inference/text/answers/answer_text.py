"""The visible side of an answer: tokens to text, cut at stop strings, tool calls taken out.

    tokens ─▶ detokenizer ─▶ leading space ─▶ stop strings ─▶ tool call parser ─▶ parts

Leading space is held back only for models that think: it is dropped when it turns out to stand
beside a thinking block, else it is the answer's.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.text.answers.parts import Part, TextPart, ToolCallParser
from inference.text.answers.stop_strings import StopStrings
from inference.text.tokens.detokenizer import Detokenizer
from inference.text.tokens.tokenizer import Tokenizer


class AnswerText:
    """For one choice. Once ``stop`` is set, feed it no more."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str],
        continues_text: bool,
        holds_leading_space: bool,
        tool_calls: ToolCallParser | None,
        shown_token_ids: frozenset[int],
    ) -> None:
        """Raises ``ValueError`` for an empty stop string."""
        self.stop: str | None = None
        self._detokenizer = Detokenizer(
            tokenizer, continues_text=continues_text, shown_token_ids=shown_token_ids
        )
        self._leading_space = _LeadingSpace(holds_leading_space)
        self._stop_strings = StopStrings(stop)
        self._tool_calls = tool_calls

    def feed(self, token_id: int) -> list[Part]:
        return self._search(self._leading_space.feed(self._detokenizer.feed([token_id])))

    def feed_text(self, text: str) -> list[Part]:
        """Text between tokens: the head of a call, or what stands between two messages."""
        return self._search(self._leading_space.feed(text)) if text else []

    def drop_leading_space(self) -> None:
        """A thinking block opens or closes here."""
        self._leading_space.drop()

    def flush(self) -> list[Part]:
        """End the answer and return the held-back text. May still find a stop string."""
        rest = self._leading_space.feed(self._detokenizer.flush()) + self._leading_space.flush()
        parts = self._search(rest)
        if self.stop is None:
            parts += self._read(self._stop_strings.flush())
            parts += self._end_calls()
        return parts

    def _search(self, text: str) -> list[Part]:
        found = self._stop_strings.feed(text)
        parts = self._read(found.text)
        if found.stop is not None:
            self.stop = found.stop
            parts += self._end_calls()
        return parts

    def _read(self, text: str) -> list[Part]:
        if not text:
            return []
        return [TextPart(text)] if self._tool_calls is None else self._tool_calls.feed(text)

    def _end_calls(self) -> list[Part]:
        return [] if self._tool_calls is None else self._tool_calls.flush()


class _LeadingSpace:
    def __init__(self, is_held: bool) -> None:
        self._held: str | None = "" if is_held else None
        """``None`` once something else than white space has come."""
        self._is_dropped = False

    def feed(self, text: str) -> str:
        if self._held is None:
            return text
        self._held += text
        if not self._held.strip():
            return ""
        return self.flush()

    def drop(self) -> None:
        """Discard the held-back text and the white space that follows it."""
        self._is_dropped = True

    def flush(self) -> str:
        held, self._held = self._held or "", None
        return held.lstrip() if self._is_dropped else held
