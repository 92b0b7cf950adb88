"""JSON as models write it: where a value ends, and what its mistakes stand for.

    copy.feed('{"a": [1, 2') ─▶ copy.take() == '{"a":[1,2'      COMPLETE behind the last bracket
    repaired('{"a":[True,],}') ─▶ '{"a":[true]}'                and whether it had trailing commas

Knows nothing of tool calls.
"""

from __future__ import annotations

import enum
import json
import re
from typing import Any

WHITESPACE = " \t\r\n"
MAX_DEPTH = 64
MAX_SCALAR_LENGTH = 400
"""Python refuses to read integers of a few thousand digits."""

CLOSERS = {"{": "}", "[": "]"}
_FOLLOWING = {
    "{": '"}',
    "[": '"{[0]',
    ":": '"{[0',
    ",": '"{[0}]',
    '"': ":,}]",
    "0": "0,}]",
    "}": ",}]",
}
"""The characters that may come behind a character outside of strings. 0 stands for numbers and
words, a closing brace for every value that has ended, but for a string."""
_SCALAR_RUN = re.compile(r"[-+.0-9A-Za-z]+")
_STRING_RUN = re.compile(r'(?:[^"\\]+|\\.)+', re.DOTALL)


class ReadState(enum.Enum):
    RUNNING = enum.auto()
    COMPLETE = enum.auto()
    BROKEN = enum.auto()


class JsonCopy:
    """Copies one object or array as it is generated, without the white space outside of strings,
    and counts its brackets. What stands between them may still be no JSON. Constant work per
    character."""

    def __init__(self, *, stops_behind_keys: bool = False) -> None:
        """``stops_behind_keys``: ``feed`` stops behind the colon of each of the object's own
        keys."""
        self.state = ReadState.RUNNING
        self.is_behind_key = False
        self._stops_behind_keys = stops_behind_keys
        self._copied: list[str] = []
        self._open: list[str] = []
        """Closing brackets of the open arrays and objects, outermost first."""
        self._last = ":"
        """The key of ``_FOLLOWING`` for what may come next."""
        self._is_in_string = False
        self._is_escaped = False

    @property
    def text(self) -> str:
        """The text that was copied since the last ``take``."""
        return "".join(self._copied)

    def take(self) -> str:
        text = self.text
        self._copied.clear()
        return text

    def feed(self, text: str, start: int) -> int:
        """Reads ``text`` from ``start``, at first an opening bracket; returns where it stopped: at
        the end, behind the value, or at the first character that cannot belong to it."""
        self.is_behind_key = False
        position = start
        while position < len(text) and self.state is ReadState.RUNNING and not self.is_behind_key:
            read = self._read_string if self._is_in_string else self._read_outside
            position = read(text, position)
        return position

    def as_json(self) -> tuple[str, bool]:
        """The JSON that was meant, as ``repaired`` understands it."""
        return repaired(self.text)

    def end_value(self) -> None:
        """The value behind a key was read by somebody else."""
        self._last = "}"

    def _read_string(self, text: str, position: int) -> int:
        run = None if self._is_escaped else _STRING_RUN.match(text, position)
        piece = run.group() if run else text[position]
        self._copied.append(piece)
        if run is None:
            self._is_in_string = self._is_escaped or piece == "\\"
            self._is_escaped = not self._is_escaped and piece == "\\"
        return position + len(piece)

    def _read_outside(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            self._last = "}" if self._last == "0" else self._last
            return position + 1
        run = _SCALAR_RUN.match(text, position)
        kind, piece = ("0", run.group()) if run else (text[position], text[position])
        if kind not in _FOLLOWING[self._last] or not self._counts(kind):
            self.state = ReadState.BROKEN
            return position
        self._copied.append(piece)
        self._is_in_string = kind == '"'
        self._last = "}" if kind == "]" else kind
        self.is_behind_key = kind == ":" and len(self._open) == 1 and self._stops_behind_keys
        return position + len(piece)

    def _counts(self, kind: str) -> bool:
        """Whether the bracket, if it is one, can stand there."""
        if kind in CLOSERS:
            self._open.append(CLOSERS[kind])
            return len(self._open) <= MAX_DEPTH
        if kind not in "}]":
            return True
        is_matching = self._open.pop() == kind
        if is_matching and not self._open:
            self.state = ReadState.COMPLETE
        return is_matching


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[-+.0-9A-Za-z]+|[{}\[\]:,]', re.DOTALL)
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")
LITERALS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}


def repaired(copied: str) -> tuple[str, bool]:
    """The JSON that a copied text stands for, and whether a member or an item may be missing behind
    a comma. Corrects usual mistakes: control characters in strings, unknown escapes, trailing
    commas, Python's True, False and None. Raises ``ValueError`` for what cannot be JSON."""
    tokens: list[str] = []
    has_trailing_comma = False
    for token in json_tokens(copied):
        if token in "}]" and tokens and tokens[-1] == ",":
            tokens.pop()
            if not tokens or tokens[-1] in "{[":
                raise ValueError("a comma behind nothing")
            has_trailing_comma = True
        tokens.append(token)
    return "".join(tokens), has_trailing_comma


def json_tokens(copied: str) -> list[str]:
    """The tokens of a copied text, strings and words corrected. Raises ``ValueError``."""
    tokens = _TOKEN.findall(copied)
    if sum(map(len, tokens)) < len(copied):
        raise ValueError("a string without an end")
    return [_repaired_token(token) for token in tokens]


def _repaired_token(token: str) -> str:
    if token[0] == '"':
        return repaired_string(token)
    if token in "{}[]:,":
        return token
    literal = LITERALS.get(token)
    is_number = len(token) <= MAX_SCALAR_LENGTH and NUMBER.fullmatch(token)
    if literal is None and not is_number:
        raise ValueError("a word that is no value")
    return literal or token


def repaired_string(string: str) -> str:
    """An escape that JSON does not have was meant as it stands: its backslash is doubled."""
    escaped = _ESCAPE.sub(_repaired_escape, string)
    return _CONTROL_CHARACTER.sub(lambda found: json.dumps(found.group())[1:-1], escaped)


def _repaired_escape(escape: re.Match[str]) -> str:
    after = escape.group(1)
    if after == "'":
        return after
    is_known = len(after) > 1 or after in '"\\/bfnrt'
    return escape.group() if is_known else f"\\{escape.group()}"


_DECODER = json.JSONDecoder(strict=False)


def member_texts(text: str) -> dict[str, str]:
    """The JSON text of each member's value in an object. ``text`` is valid, and without white space
    outside of strings."""
    texts: dict[str, str] = {}
    position = 1
    while text[position] != "}":
        key, colon = _DECODER.raw_decode(text, position)
        _, end = _DECODER.raw_decode(text, colon + 1)
        texts[key] = text[colon + 1 : end]
        position = end + 1 if text[end] == "," else end
    return texts


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
    """``value`` without white space. Raises ``ValueError`` for infinity and NaN, and ``TypeError``
    for a value that JSON has no type for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _SURROGATE.search(text):  # half of a pair, which no encoding can carry
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def is_encodable(text: str) -> bool:
    """Whether the text can be encoded: not so when an escape named half of a surrogate pair."""
    return not _SURROGATE.search(text)
