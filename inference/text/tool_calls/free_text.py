"""Text up to a marker, and the one marker that must come next. Both across any chunk borders.

    FreeText    "I look.\\n<tool_c" ─▶ text "I look."      the newline and "<tool_c" are held back
                "all>"             ─▶ found "<tool_call>"  space "\\n" belongs to the marker
    Expected    "\\n<function="     ─▶ found, or failed at the first character that does not fit

Constant work per character. The first character of a marker occurs nowhere else in it, so that a
match that fails never hides the beginning of another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.text.tool_calls.json_text import WHITESPACE, ReadState

_SPACE_RUN = re.compile(f"[{WHITESPACE}]+")


class _MarkerMatch:
    """A partial match: the common beginning of some markers."""

    def __init__(self, markers: Sequence[str]) -> None:
        assert all(marker.count(marker[0]) == 1 for marker in markers)
        self._markers = markers
        self.read = ""

    def advance(self, character: str) -> bool:
        """Whether it fits; nothing is read when it does not."""
        longer = self.read + character
        fits = any(marker.startswith(longer) for marker in self._markers)
        if fits:
            self.read = longer
        return fits

    @property
    def found(self) -> str | None:
        return self.read if self.read in self._markers else None


class FreeText:
    """Text up to one of its markers. Where markers begin alike, none may be the beginning of
    another."""

    def __init__(
        self, markers: Sequence[str], *, follows_call: bool = False, has_text: bool = False
    ) -> None:
        """``follows_call``: leading whitespace is the format's, not the text's, and so is a marker
        of which the answer's end leaves only a part. ``has_text``: text came directly before."""
        self.found: str | None = None
        self.space = ""
        """Whitespace directly before ``found``."""
        self.has_text = has_text
        """Whether anything but whitespace was read."""
        self._drops_space = follows_call
        self._match = _MarkerMatch(markers)
        self._plain_run = re.compile(
            f"[^{WHITESPACE}{''.join(re.escape(marker[0]) for marker in markers)}]+"
        )
        self._space: list[str] = []
        self._text: list[str] = []

    def feed(self, text: str, start: int) -> int:
        """Returns where it stopped: at the end, or after a marker, which is then ``found``."""
        position = start
        while position < len(text) and self.found is None:
            position = self._read(text, position)
        return position

    def take(self) -> str:
        """The text that is safe to show."""
        text = "".join(self._text)
        self._text.clear()
        return text

    def reject(self) -> None:
        """Treat the found marker as text."""
        assert self.found is not None
        self._write(self.found)
        self.found, self._match.read = None, ""

    def flush(self) -> str:
        """The answer has ended: the rest of the text. A marker that was found, and the space before
        it, are the caller's."""
        if self.found is not None:
            return self.take()
        if not self._drops_space:
            self._text += [*self._space, self._match.read]
        return self.take()

    def _read(self, text: str, position: int) -> int:
        if self._match.advance(text[position]):
            self.found = self._match.found
            if self.found is not None:
                self.space = "".join(self._space)
            return position + 1
        if self._match.read:
            self._write(self._match.read)
            self._match.read = ""
            return position
        if run := _SPACE_RUN.match(text, position):
            self._space.append(run.group())
        else:
            run = self._plain_run.match(text, position)
            # A marker's first character that was no match is text.
            self._write(run.group() if run else text[position])
        return run.end() if run else position + 1

    def _write(self, text: str) -> None:
        if not self._drops_space:
            self._text.extend(self._space)
        self._text.append(text)
        self._space.clear()
        self._drops_space, self.has_text = False, True


class Expected:
    """Optional whitespace, then one of some markers."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.state = ReadState.RUNNING
        self._match = _MarkerMatch(markers)

    @property
    def found(self) -> str:
        return self._match.read

    def feed(self, text: str, start: int) -> int:
        """Returns where it stopped: at the end, after the marker, or at what does not fit."""
        for position in range(start, len(text)):
            character = text[position]
            if character in WHITESPACE and not self._match.read:
                continue
            if not self._match.advance(character):
                self.state = ReadState.BROKEN
                return position
            if self._match.found is not None:
                self.state = ReadState.COMPLETE
                return position + 1
        return len(text)
