"""One JSON value, read as it is generated and written again as JSON that is always valid.

    feed('{"a": [1, 2') ─▶ take() == '{"a":[1'      "2" may continue, so it waits
    state is COMPLETE   once the value is whole; BROKEN at what cannot belong to it

Whitespace outside of strings is left out. Usual mistakes inside a value are corrected:
control characters in strings, unknown escapes, trailing commas, Python's True, False and None.
Constant work per character. Knows nothing of tool calls.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from typing import Any

WHITESPACE = " \t\r\n"
MAX_DEPTH = 64
MAX_SCALAR_LENGTH = 400
"""Python refuses to read integers of a few thousand digits."""

_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR_RUN = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
_CLOSERS = {"{": "}", "[": "]"}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_NUM_ESCAPE_CHARACTERS = len("\\u0000")


class ReadState(enum.Enum):
    RUNNING = enum.auto()
    COMPLETE = enum.auto()
    BROKEN = enum.auto()


class JsonScanner:
    """Reads one JSON value of any kind. ``state``: partial, complete or broken."""

    def __init__(self) -> None:
        self.state = ReadState.RUNNING
        self.has_trailing_comma = False
        """Whether a member or an item may be missing behind a comma."""
        self._read: Callable[[str, int], int] = self._read_value
        self._written: list[str] = []
        self._pending: list[str] = []
        """Comma and key of a member whose value has not begun: left out when none comes."""
        self._open: list[str] = []
        """Closing brackets of the open arrays and objects, outermost first."""
        self._is_key = False
        self._escape = ""
        self._scalar = ""

    def feed(self, text: str, start: int = 0) -> int:
        """Reads ``text`` from ``start``; returns where it stopped: at the end, after the value, or
        at the first character that cannot belong to it."""
        position = start
        while position < len(text) and self.state is ReadState.RUNNING:
            position = self._read(text, position)
        return position

    def take(self) -> str:
        """The text that was written since the last call."""
        written = "".join(self._written)
        self._written.clear()
        return written

    def _read_value(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE:
            return position + 1
        if character == '"':
            self._begin_value(character)
            self._read, self._is_key = self._read_string, False
            return position + 1
        if character in _CLOSERS:
            return self._open_container(character, position)
        if not _SCALAR_RUN.match(character):
            return self._break(position)
        self._read = self._read_scalar
        return position

    def _open_container(self, character: str, position: int) -> int:
        if len(self._open) == MAX_DEPTH:
            return self._break(position)
        self._begin_value(character)
        self._open.append(_CLOSERS[character])
        self._read = self._read_key if character == "{" else self._read_item
        return position + 1

    def _read_item(self, text: str, position: int) -> int:
        """Reads what follows the ``[`` or a comma of an array."""
        if text[position] == "]":
            return self._close_container(position)
        if text[position] not in WHITESPACE:
            self._read = self._read_value
            return position
        return position + 1

    def _read_key(self, text: str, position: int) -> int:
        """Reads what follows the ``{`` or a comma of an object."""
        character = text[position]
        if character == '"':
            self._pending.append(character)
            self._read, self._is_key = self._read_string, True
        elif character == "}":
            return self._close_container(position)
        elif character not in WHITESPACE:
            return self._break(position)
        return position + 1

    def _read_colon(self, text: str, position: int) -> int:
        character = text[position]
        if character == ":":
            self._pending.append(character)
            self._read = self._read_value
        elif character not in WHITESPACE:
            return self._break(position)
        return position + 1

    def _read_string(self, text: str, position: int) -> int:
        if run := _STRING_RUN.match(text, position):
            self._write(run.group())
            return run.end()
        character = text[position]
        if character == '"':
            self._write(character)
            self._end_string()
        elif character == "\\":
            self._escape, self._read = character, self._read_escape
        else:
            self._write(json.dumps(character)[1:-1])
        return position + 1

    def _read_escape(self, text: str, position: int) -> int:
        """An escape waits until it is whole. One that JSON does not have was meant as it stands:
        its backslash is doubled."""
        character = text[position]
        if len(self._escape) == 1 and character in '"\\/bfnrt':
            return self._end_escape(self._escape + character, position + 1)
        if len(self._escape) == 1 and character == "'":
            return self._end_escape(character, position + 1)
        is_wanted = character == "u" if len(self._escape) == 1 else character in _HEX_DIGITS
        if not is_wanted:
            return self._end_escape("\\" + self._escape, position)
        self._escape += character
        if len(self._escape) == _NUM_ESCAPE_CHARACTERS:
            return self._end_escape(self._escape, position + 1)
        return position + 1

    def _end_escape(self, written: str, position: int) -> int:
        self._write(written)
        self._escape, self._read = "", self._read_string
        return position

    def _end_string(self) -> None:
        if self._is_key:
            self._read = self._read_colon
        else:
            self._end_value()

    def _read_scalar(self, text: str, position: int) -> int:
        if run := _SCALAR_RUN.match(text, position):
            room = MAX_SCALAR_LENGTH + 1 - len(self._scalar)
            piece = run.group()[:room]
            self._scalar += piece
            position += len(piece)
            return self._break(position) if len(piece) == room else position
        literal = _LITERALS.get(self._scalar)
        if literal is None and not _NUMBER.fullmatch(self._scalar):
            return self._break(position)
        self._begin_value(literal or self._scalar)
        self._scalar = ""
        self._end_value()
        return position

    def _read_after(self, text: str, position: int) -> int:
        """Reads what follows a value inside a container."""
        character = text[position]
        if character == self._open[-1]:
            return self._close_container(position)
        if character == ",":
            self._pending.append(character)
            self._read = self._read_key if self._open[-1] == "}" else self._read_item
        elif character not in WHITESPACE:
            return self._break(position)
        return position + 1

    def _close_container(self, position: int) -> int:
        self.has_trailing_comma = self.has_trailing_comma or bool(self._pending)
        self._pending.clear()
        self._written.append(self._open.pop())
        self._end_value()
        return position + 1

    def _begin_value(self, written: str) -> None:
        self._written.extend(self._pending)
        self._pending.clear()
        self._written.append(written)

    def _end_value(self) -> None:
        if self._open:
            self._read = self._read_after
        else:
            self.state = ReadState.COMPLETE

    def _write(self, text: str) -> None:
        (self._pending if self._is_key else self._written).append(text)

    def _break(self, position: int) -> int:
        self.state = ReadState.BROKEN
        return position


def read_json(text: str) -> Any:
    """The value. Raises ``ValueError`` for text that is not JSON, and for an object with a
    duplicate key, whose value is ambiguous."""
    return json.loads(text, strict=False, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


_SURROGATE = re.compile("[\ud800-\udfff]")


def compact_json(value: object) -> str:
    """``value`` as the scanner writes it. Raises ``ValueError`` for infinity and NaN, and
    ``TypeError`` for a value that JSON has no type for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _SURROGATE.search(text):  # half of a pair, which no encoding can carry
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def is_encodable(text: str) -> bool:
    """Whether the text can be encoded: not so when an escape named half of a surrogate pair."""
    return not _SURROGATE.search(text)
