"""Finds the strings that end an answer, across any chunk borders.

    feed("Hel") -> StopFeed("Hel", None)      nothing pending
    feed("lo E") -> "lo "                     "E" could become "END": held back
    feed("ND!") -> ("", stop="END")           the stop string and what follows are never emitted

The string whose last character comes first wins; of two that end together, the longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    """For one answer. Once ``feed`` has found a stop, feed it no more."""

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
