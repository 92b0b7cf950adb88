"""Strings found in the text across any borders of tokens: stop strings, and the phrases of several
tokens between which some models think.

    Here is my thought process: ─OPENS─▶ text … ─THOUGHT─▶ Here is my response: ─CLOSES─▶ ANSWER
    <think> … </think> <response> … </response>       likewise, where these are no tokens

Text that may still become a phrase is held back; its tokens count to what it would otherwise be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from inference.text.reasoning import MARKER_PAIRS, Run, TokenKind


@dataclass(frozen=True, slots=True)
class StopFeed:
    text: str
    """No part of it can belong to a stop string."""
    stop: str | None = None
    behind: str = ""


class StopStrings:
    """The string whose last character comes first wins; of two that end together, the longer.

        feed("lo E") -> "lo "                     "E" could become "END": held back
        feed("ND!") -> ("", stop="END")           the stop string and what follows are never emitted

    Once ``feed`` has found a stop, feed it no more.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ``ValueError`` for an empty stop string."""
        if not all(stops):
            raise ValueError("a stop string is empty")
        self._stops = stops
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._held = ""

    def feed(self, text: str) -> StopFeed:
        if not self._held and self._first_characters.isdisjoint(text):
            return StopFeed(text)
        pending = self._held + text
        found = [(pending.find(stop), stop) for stop in self._stops if stop in pending]
        if found:
            self._held = ""
            start, stop = min(found, key=lambda one: (one[0] + len(one[1]), one[0]))
            return StopFeed(pending[:start], stop, pending[start + len(stop) :])
        num_held = max(_num_begun(pending, stop) for stop in self._stops)
        self._held = pending[len(pending) - num_held :]
        return StopFeed(pending[: len(pending) - num_held])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _num_begun(text: str, stop: str) -> int:
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) - start if start >= 0 else 0


RESPONSE = ("<response>", "</response>")
"""Granite 3.3 writes these around its answer where it thinks."""


@dataclass(frozen=True, slots=True)
class PhraseMarkers:
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    answer_opens: str = ""
    answer_closes: str = ""
    """These stand around the answer and are not part of it."""
    is_asked_for: bool = False
    """The model writes the phrases only where its template enables thinking."""


SPOKEN = PhraseMarkers(
    opens=("Here is my thought process:", "Here's my thought process:"),
    closes=("Here is my response:", "Here's my response:"),
    is_asked_for=True,
)


def find_phrases(template: str | None) -> PhraseMarkers | None:
    """The phrases that ``template`` asks the model to write, where none of them is a token."""
    if template is None:
        return None
    if SPOKEN.opens[0] in template and SPOKEN.closes[0] in template:
        return SPOKEN
    named = [pair for pair in MARKER_PAIRS if pair[0] in template and pair[1] in template]
    if not named:
        return None
    opens, closes = named[0]
    around = RESPONSE if RESPONSE[0] in template else ("", "")
    return PhraseMarkers((opens,), (closes,), *around)


def opens_phrase(prompt: str, phrases: PhraseMarkers) -> bool:
    return prompt.rstrip().endswith(phrases.opens)


class _Stage(Enum):
    BEFORE = "before"
    THOUGHT = "thought"
    AFTER = "after"
    """The answer's own opening may come."""
    WRAPPED = "wrapped"
    ANSWER = "answer"


class PhraseReader:
    def __init__(self, phrases: PhraseMarkers, *, is_open: bool = False) -> None:
        self._phrases = phrases
        self._stage = _Stage.THOUGHT if is_open else _Stage.BEFORE
        self._held = ""
        self._closing = StopStrings(phrases.closes)

    def feed(self, token_id: int, text: str) -> tuple[TokenKind, list[Run]]:
        runs = self._read(text)
        markers = [kind for kind, _ in runs if kind not in (TokenKind.THOUGHT, TokenKind.ANSWER)]
        return markers[-1] if markers else self._kind, runs

    def flush(self, text: str) -> list[Run]:
        runs = self._read(text)
        rest = self._held + self._closing.flush()
        self._held = ""
        return [*runs, *_run(self._kind, rest)]

    @property
    def _kind(self) -> TokenKind:
        return TokenKind.THOUGHT if self._stage is _Stage.THOUGHT else TokenKind.ANSWER

    def _read(self, text: str) -> list[Run]:
        match self._stage:
            case _Stage.BEFORE:
                return self._read_first(text, self._phrases.opens, TokenKind.OPENS, _Stage.THOUGHT)
            case _Stage.THOUGHT:
                following = _Stage.AFTER if self._phrases.answer_opens else _Stage.ANSWER
                return self._read_on(text, TokenKind.CLOSES, following)
            case _Stage.AFTER:
                opens = (self._phrases.answer_opens,)
                return self._read_first(text, opens, TokenKind.MARKUP, _Stage.WRAPPED)
            case _Stage.WRAPPED:
                return self._read_on(text, TokenKind.MARKUP, _Stage.ANSWER)
            case _Stage.ANSWER:
                return _run(TokenKind.ANSWER, text)

    def _read_first(
        self, text: str, phrases: tuple[str, ...], kind: TokenKind, following: _Stage
    ) -> list[Run]:
        """A phrase comes before all but white space, or not at all."""
        self._held += text
        begun = self._held.lstrip()
        found = next((one for one in phrases if begun.startswith(one)), None)
        if found is None and any(one.startswith(begun) for one in phrases):
            return []
        rest, self._held = self._held, ""
        if found is None:
            self._stage = _Stage.ANSWER
            return _run(TokenKind.ANSWER, rest)
        self._stage = following
        if following is _Stage.WRAPPED:
            self._closing = StopStrings((self._phrases.answer_closes,))
        return [(kind, found), *self._read(begun.removeprefix(found))]

    def _read_on(self, text: str, closes: TokenKind, following: _Stage) -> list[Run]:
        found = self._closing.feed(text)
        runs = _run(self._kind, found.text)
        if found.stop is None:
            return runs
        self._stage = following
        return [*runs, (closes, found.stop), *self._read(found.behind)]


def _run(kind: TokenKind, text: str) -> list[Run]:
    return [(kind, text)] if text else []
