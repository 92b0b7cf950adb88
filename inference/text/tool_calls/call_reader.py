"""The base of all readers of calls behind an opening, the tools that a reader may know, and what
finds markers across any chunk borders.

    FreeText    "I look.\\n<tool_c" ─▶ text "I look."      the newline and "<tool_c" are held back
                "all>"             ─▶ found "<tool_call>"  space "\\n" belongs to the marker
    Expected    "\\n<function="     ─▶ found, or failed at the first character that does not fit

The first character of a marker occurs nowhere else in it, so that a match that fails never hides
the beginning of another. Where markers begin alike, none may be the beginning of another.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from inference.protocol.generation import ToolDefinition
from inference.text.tool_calls.json_text import WHITESPACE, ReadState


class ReadCall(NamedTuple):
    name: str
    arguments: str
    """A JSON object."""


class CallReader(ABC):
    """Gathers the calls of one block. Its parser keeps the block's text, and decides whether they
    are calls once it knows what follows them."""

    _read: Callable[[str, int], int]
    """The state: takes the text and a position, returns where it stopped."""

    def __init__(self) -> None:
        self.is_done = False
        self.calls: list[ReadCall] = []
        self.has_begun = False
        """Whether a call had begun. Where it breaks, what follows may be its remains."""
        self.is_broken = False
        """Whether a call had begun that is not whole. Those before it are in ``calls``."""
        self.is_closed = False
        """Whether the block's closing marker was read, so that anything may follow."""
        self.has_streamed = False
        self._tail: list[str] = []

    @property
    def tail(self) -> str:
        """The text that was read behind the last whole call."""
        return "".join(self._tail)

    def feed(self, text: str, start: int) -> int:
        """Reads ``text`` from ``start``; returns where it stopped: at the end, or at what follows
        the calls."""
        position = start
        while position < len(text) and not self.is_done:
            position = self._read(text, position)
        return position

    @abstractmethod
    def close(self) -> None:
        """The answer has ended. A call that is not whole is none."""

    def _end(self, position: int = 0) -> int:
        self.is_done = True
        return position

    def _break(self, position: int = 0) -> int:
        self.is_broken = self.has_begun
        return self._end(position)


class KnownTools:
    """The tools that a request offers. Schemas are the client's: whatever in them is not of the
    expected shape counts as absent."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._schemas = {tool.name: tool.parameters or {} for tool in tools}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of the tool's arguments; empty for a tool that the request does not
        offer."""
        return self._schemas.get(name, {})

    def properties(self, name: str) -> Mapping[str, Any]:
        properties = self.schema(name).get("properties")
        return properties if isinstance(properties, dict) else {}

    def may_be_all(self, name: str, arguments: str) -> bool:
        """Whether these arguments, a JSON object that ends in a comma, can be complete: they are
        all that the tool has, or its arguments are unknown."""
        given = json.loads(arguments)
        is_flat = not any(isinstance(value, dict | list) for value in given.values())
        return name not in self or (is_flat and self.properties(name).keys() <= given.keys())

    def named_by(self, arguments: Collection[str]) -> str | None:
        """The only tool that takes these arguments."""
        fitting = [name for name in self._schemas if self.takes(name, arguments)]
        return fitting[0] if len(fitting) == 1 else None

    def takes(self, name: str, arguments: Collection[str]) -> bool:
        required = self.schema(name).get("required")
        needed = required if isinstance(required, list) else []
        given = list(arguments)  # a schema's ``required`` may name anything
        return set(given) <= self.properties(name).keys() and all(
            argument in given for argument in needed
        )


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
