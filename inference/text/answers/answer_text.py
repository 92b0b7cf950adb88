"""The visible side of an answer: tokens to text, cut at stop strings, tool calls taken out.

    tokens ─▶ detokenizer ─▶ leading space ─▶ stop strings ─▶ tool call parser ─▶ parts

Leading space is held back only for models that think: it is dropped when it turns out to stand
beside a thinking block, else it is the answer's.

Stop strings are found across any chunk borders.

    feed("Hel") -> StopFeed("Hel", None)      nothing pending
    feed("lo E") -> "lo "                     "E" could become "END": held back
    feed("ND!") -> ("", stop="END")           the stop string and what follows are never emitted

The string whose last character comes first wins; of two that end together, the longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.text.answers.parts import Part, TextPart, ToolCallParser
from inference.text.tokens.tokenizer import Detokenizer, Tokenizer


class AnswerText:
    """Splits one choice's answer tokens into text and tool calls, up to a stop string. Once
    ``stop`` is set, feed it no more."""

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


@dataclass(frozen=True, slots=True)
class StopFeed:
    text: str
    """Safe to emit: no part of it can belong to a stop string."""
    stop: str | None = None
    """The stop string found; the answer ends before it."""


class _Matcher:
    """Knuth-Morris-Pratt over one stop string: amortised constant work per character."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.num_matched = 0
        self._fallback = _fallback_lengths(pattern)

    def advance(self, character: str) -> bool:
        while self.num_matched and self.pattern[self.num_matched] != character:
            self.num_matched = self._fallback[self.num_matched - 1]
        if self.pattern[self.num_matched] == character:
            self.num_matched += 1
        return self.num_matched == len(self.pattern)


def _fallback_lengths(pattern: str) -> list[int]:
    """Entry i: length of the longest proper prefix of pattern[:i + 1] that is also its suffix."""
    lengths = [0] * len(pattern)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[position] != pattern[length]:
            length = lengths[length - 1]
        length += pattern[position] == pattern[length]
        lengths[position] = length
    return lengths


class StopStrings:
    """Finds stop strings in one answer. Once ``feed`` has found a stop, feed it no more."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ``ValueError`` for an empty stop string, which would end every answer."""
        if not all(stops):
            raise ValueError("a stop string is empty")
        self._by_first: dict[str, list[_Matcher]] = {}
        for stop in stops:
            self._by_first.setdefault(stop[0], []).append(_Matcher(stop))
        self._begun: list[_Matcher] = []
        """The matchers that are in the middle of their string."""
        self._held = ""

    def feed(self, text: str) -> StopFeed:
        if not self._by_first:
            return StopFeed(text)
        # [ held | text ]: held is what the matchers are in the middle of.
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            if found := self._advance(character):
                self._held = ""
                stop = max((matcher.pattern for matcher in found), key=len)
                return StopFeed(pending[: end - len(stop)], stop)
        num_held = max((matcher.num_matched for matcher in self._begun), default=0)
        self._held = pending[len(pending) - num_held :]
        return StopFeed(pending[: len(pending) - num_held])

    def _advance(self, character: str) -> list[_Matcher]:
        """The matchers whose string ends with this character. Most characters neither begin nor
        continue a stop string, so many stop strings cost no more than one."""
        starting = self._by_first.get(character, ())
        trying = [*self._begun, *(one for one in starting if not one.num_matched)]
        found = [matcher for matcher in trying if matcher.advance(character)]
        self._begun = [matcher for matcher in trying if matcher.num_matched]
        return found

    def flush(self) -> str:
        """Return the held-back text, which turned out to be plain text."""
        held, self._held = self._held, ""
        return held
