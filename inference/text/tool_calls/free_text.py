"""Text up to a marker, and the one marker that must come next. Both across any chunk borders.

    FreeText    "I look.\\n<tool_c" ─▶ text "I look."      the newline and "<tool_c" are held back
                "all>"             ─▶ found "<tool_call>"  space "\\n" belongs to the marker
    Expected    "\\n<function="     ─▶ found, or failed at the first character that does not fit

The first character of a marker occurs nowhere else in it, so that a match that fails never hides
the beginning of another. Where markers begin alike, none may be the beginning of another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from inference.text.tool_calls.json_text import WHITESPACE, ReadState


class FreeText:
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
        self._whole, self._begun = _patterns(tuple(markers))
        self._held = ""
        """Whitespace and a part of a marker, read last."""
        self._text: list[str] = []

    def feed(self, text: str, start: int) -> int:
        """Returns where it stopped: at the end, or after a marker, which is then ``found``."""
        pending, num_held = self._held + text[start:], len(self._held)
        found = self._whole.search(pending) or self._begun.search(pending)
        assert found is not None
        before = pending[: found.start()]
        plain = before.rstrip(WHITESPACE)
        self._write(plain)
        if found.re is self._begun:
            self._held = pending[len(plain) :]
            return len(text)
        self._held = ""
        self.found, self.space = found.group(), before[len(plain) :]
        return start + found.end() - num_held

    def take(self) -> str:
        """The text that is safe to show."""
        text = "".join(self._text)
        self._text.clear()
        return text

    def reject(self) -> None:
        """Treat the found marker as text."""
        assert self.found is not None
        self._write(self.space + self.found)
        self.found = None

    def flush(self) -> str:
        """The answer has ended: the rest of the text. A marker that was found, and the space before
        it, are the caller's."""
        if self.found is None and not self._drops_space:
            self._text.append(self._held)
        return self.take()

    def _write(self, text: str) -> None:
        if text:
            self._text.append(text.lstrip(WHITESPACE) if self._drops_space else text)
            self._drops_space, self.has_text = False, True


@lru_cache(maxsize=64)
def _patterns(markers: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A marker, and what may become one at the text's end."""
    assert all(marker.count(marker[0]) == 1 for marker in markers)
    begun = "|".join(map(_beginning, markers)) or "(?!)"
    whole = "|".join(map(re.escape, markers)) or "(?!)"
    return re.compile(whole), re.compile(rf"(?:{begun})?\Z")


def _beginning(marker: str) -> str:
    """``a(?:b)?`` for ``abc``."""
    pattern = ""
    for character in reversed(marker[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern or "(?!)"


class Expected:
    """Optional whitespace, then one of some markers."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.state = ReadState.RUNNING
        self.found = ""
        """The part of a marker that was read."""
        self._markers = markers

    def feed(self, text: str, start: int) -> int:
        """Returns where it stopped: at the end, after the marker, or at what does not fit."""
        for position in range(start, len(text)):
            character = text[position]
            if character in WHITESPACE and not self.found:
                continue
            longer = self.found + character
            if not any(marker.startswith(longer) for marker in self._markers):
                self.state = ReadState.BROKEN
                return position
            self.found = longer
            if longer in self._markers:
                self.state = ReadState.COMPLETE
                return position + 1
        return len(text)
