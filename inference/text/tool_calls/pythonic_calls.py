"""Calls written as a Python list, ``[f(a=1, b="x"), g()]``.

A call is held back until its closing parenthesis. Its arguments must be literals, with names;
JSON's true, false and null are understood too.
"""

from __future__ import annotations

import ast
import re

from inference.text.tool_calls.argument_values import literal_value, parse_literals
from inference.text.tool_calls.call_reader import CallReader, ReadCall
from inference.text.tool_calls.json_text import WHITESPACE, compact_json, read_json

_NAME_CHARACTER = re.compile(r"[A-Za-z0-9_.-]")
_PLAIN_RUN = re.compile(r"""[^'"\\()\[\]{}]+""")


class PythonicCalls(CallReader):
    """Reads the calls of a Python list."""

    def __init__(self, *, is_opened: bool = True, keeps_json: bool = False) -> None:
        """``is_opened``: it begins behind the bracket. ``keeps_json``: a value that is JSON and
        none of Python's, such as a number that is too large for it, is kept as it was written."""
        super().__init__()
        self._keeps_json = keeps_json
        self._name = ""
        self._arguments: list[str] = []
        self._depth = 0
        self._quote = ""
        self._is_escaped = False
        self._is_whole = False
        """Whether the list's closing bracket was read."""
        self._read = self._read_name if is_opened else self._read_bracket

    def feed(self, text: str, start: int) -> int:
        position = start
        while position < len(text) and not self.is_done:
            end = self._read(text, position)
            self._tail.append(text[position:end])
            position = end
            if self._depth == 0 and self._arguments:
                self._end_call()
            elif self._is_whole:
                self._tail.clear()
                self._end()
        return position

    def close(self) -> None:
        if self._name or self._arguments:
            self._break()
        self._end()

    def _read_bracket(self, text: str, position: int) -> int:
        if text[position] != "[":
            return self._end(position)
        self._read = self._read_name
        return position + 1

    def _read_name(self, text: str, position: int) -> int:
        character = text[position]
        if character == "(" and self._name:
            self.has_begun = True
            self._read = self._read_arguments
            return position
        if _NAME_CHARACTER.match(character):
            self._name += character
            return position + 1
        if character in WHITESPACE and not self._name:
            return position + 1
        self.calls.clear()
        return self._end(position)

    def _read_arguments(self, text: str, position: int) -> int:
        """Reads from the opening parenthesis to the closing one."""
        run = _PLAIN_RUN.match(text, position)
        piece = run.group() if run and not self._is_escaped else text[position]
        self._arguments.append(piece)
        if self._is_escaped:
            self._is_escaped = False
        elif self._quote:
            self._is_escaped = piece == "\\"
            self._quote = "" if piece == self._quote else self._quote
        elif piece in ("'", '"'):
            self._quote = piece
        elif piece in "([{":
            self._depth += 1
        elif piece in ")]}":
            self._depth -= 1
        return position + len(piece)

    def _end_call(self) -> None:
        arguments = _as_json("".join(self._arguments), keeps_json=self._keeps_json)
        self._arguments.clear()
        if arguments is None:
            self._break()
            return
        self.calls.append(ReadCall(self._name, arguments))
        self._name = ""
        self._tail.clear()
        self._read = self._read_between

    def _read_between(self, text: str, position: int) -> int:
        character = text[position]
        if character == ",":
            self._read = self._read_name
        elif character == "]":
            self._is_whole = True
        elif character not in WHITESPACE:
            return self._end(position)
        return position + 1


def _as_json(arguments: str, *, keeps_json: bool) -> str | None:
    """``(a=1, b="x")`` as a JSON object; ``None`` when it is anything but named literals."""
    try:
        source = f"f{arguments}"
        call = parse_literals(source)
        if not isinstance(call, ast.Call) or call.args:
            return None
        names = [keyword.arg for keyword in call.keywords]
        if None in names or len(set(names)) < len(names):
            return None
        members = (
            f"{compact_json(one.arg)}:{_value(one.value, source, keeps_json=keeps_json)}"
            for one in call.keywords
        )
        return f"{{{','.join(members)}}}"
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, source: str, *, keeps_json: bool) -> str:
    """As JSON. Raises ``ValueError``."""
    try:
        return compact_json(literal_value(node))
    except ValueError:
        written = ast.get_source_segment(source, node) if keeps_json else None
        if written is None:
            raise
        read_json(written)
        return written
