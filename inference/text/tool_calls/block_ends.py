"""Where a block of calls may be whole, found as its text comes, wherever it is cut.

    a marker that ends blocks, outside of strings
    the end of a line of text behind the calls

Each character is looked at once. What stands inside of brackets or tags may still be no call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

_CLOSERS = " \t\r\n,;}])`"
"""What may be too many behind calls."""
_STRING_ENDS = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}


class Ends(Protocol):
    def find(self, text: str) -> int | None:
        """The end of the block, in its text so far."""
        ...


class BracketEnds:
    """Counts brackets outside of strings."""

    def __init__(
        self,
        markers: Sequence[str],
        *,
        start: int = 0,
        quotes: Sequence[str] = ('"',),
        brackets: str = "{}[]",
    ) -> None:
        """``start``: where the calls' brackets begin. A string ends as it begins; one in quotes of
        a single character has escapes."""
        self._behind = start
        """Where the last brackets were closed."""
        self._position = start
        self._markers = markers
        self._openers = brackets[::2]
        self._depth = 0
        self._string_end: re.Pattern[str] | None = None
        ended = "".join(f"{re.escape(one)}|" for one in markers)
        self._outside = re.compile(rf"{ended}[{re.escape(self._openers)}\n]")
        quoted = "|".join(_quote(one, quotes) for one in quotes)
        self._inside = re.compile(rf"{ended}{quoted}|[{re.escape(brackets)}]")
        self._longest = max(map(len, (*markers, *quotes)))

    def find(self, text: str) -> int | None:
        while True:
            pattern = self._string_end or (self._inside if self._depth else self._outside)
            found = pattern.search(text, self._position)
            if found is None:
                # A marker may have begun.
                self._position = max(self._position, len(text) - self._longest + 1)
                return None
            start, mark = found.start(), found.group()
            if not self._string_end and any(
                len(one) > len(text) - start and one.startswith(text[start:])
                for one in self._markers
            ):
                self._position = start
                return None
            self._position = found.end()
            if mark == "\\":
                self._position += 1
            elif self._string_end:
                self._string_end = None
            elif mark in self._markers:
                return start
            elif mark == "\n":
                if text[self._behind : start].strip(_CLOSERS):
                    return start
                self._behind = start
            else:
                self._count(mark)

    def _count(self, mark: str) -> None:
        if mark in self._openers:
            self._depth += 1
        elif mark in "}])":
            self._depth -= 1
            self._behind = self._position
        else:
            self._string_end = _STRING_ENDS.get(mark) or re.compile(re.escape(mark))


def _quote(quote: str, quotes: Sequence[str]) -> str:
    """A quote is none inside of a longer one that is not whole yet."""
    longer = next((one for one in quotes if quote in one[1:]), "")
    inside = longer.partition(quote)[0]
    return f"(?<!{re.escape(inside)}){quote}" if inside else re.escape(quote)


class TagEnds:
    """Finds the closing tag of a call."""

    def __init__(
        self,
        markers: Sequence[str],
        find_end: Callable[[str, int], re.Match[str] | None],
        *,
        closing: str,
        longest: int,
    ) -> None:
        """``find_end`` is given the position from which tags have not been looked for; they have
        up to ``longest`` characters. Behind ``closing`` the block is whole."""
        self._find_end = find_end
        self._closing = closing
        self._longest = max(longest, *map(len, markers))
        self._behind: int | None = None
        self._position = 0
        self._next = re.compile("|".join(["\n", *map(re.escape, markers)]))

    def find(self, text: str) -> int | None:
        if self._behind is None and (end := self._find_end(text, self._position)) is not None:
            self._behind = self._position = end.end()
            if end.group() == self._closing:
                return self._behind
        if self._behind is not None:
            for found in self._next.finditer(text, self._position):
                if found.group() != "\n" or text[self._behind : found.start()].strip():
                    return found.start()
                self._behind = found.start()
        self._position = max(self._position, len(text) - self._longest + 1)
        return None


class JsonCopy:
    """Copies one JSON object as it is generated, without the white space outside of strings."""

    def __init__(self) -> None:
        self.is_running = True
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def feed(self, text: str, start: int) -> tuple[str, int]:
        """The copy of ``text`` from ``start``, at first an opening brace, and where it stopped: at
        the end, or behind the object."""
        copied: list[str] = []
        position = start
        while position < len(text) and self.is_running:
            run = (_STRING_RUN if self._is_in_string else _PLAIN_RUN).match(text, position)
            piece = run.group() if run and not self._is_escaped else text[position]
            position += len(piece)
            if self._is_in_string or not piece.isspace():
                copied.append(piece)
            self._count(piece)
        return "".join(copied), position

    def _count(self, piece: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif piece == '"':
            self._is_in_string = not self._is_in_string
        elif self._is_in_string:
            self._is_escaped = piece == "\\"
        elif piece in ("{", "["):
            self._depth += 1
        elif piece in ("}", "]"):
            self._depth -= 1
            self.is_running = self._depth > 0


_STRING_RUN = re.compile(r'[^"\\]+')
_PLAIN_RUN = re.compile(r'[^"{}\[\]\s]+|\s+')
