"""Calls written as a Python list, ``[f(a=1, b="x"), g()]``, behind its opening bracket.

A call is held back until its closing parenthesis. Its arguments must be literals, with names;
JSON's true, false and null are understood too.
"""

from __future__ import annotations

import ast
import re

from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.json_scanner import WHITESPACE, compact_json
from inference.text.tool_calls.part_list import PartList

_NAME_CHARACTER = re.compile(r"[A-Za-z0-9_.-]")
_PLAIN_RUN = re.compile(r"""[^'"\\()\[\]{}]+""")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PYTHON_ESCAPES = frozenset("\\'\"abfnrtvx01234567NuU\n")
_JSON_NAMES = {"true": True, "false": False, "null": None}


class PythonicCalls(CallReader):
    """``lead`` was read before and is text again when no call follows."""

    def __init__(self, parts: PartList, *, lead: str) -> None:
        super().__init__(parts)
        self._held = [lead]
        """As it came, since the last call that could be read."""
        self._name = ""
        self._arguments: list[str] = []
        self._depth = 0
        self._quote = ""
        self._is_escaped = False
        self._read = self._read_name

    def feed(self, text: str, start: int) -> int:
        position = start
        while position < len(text) and not self.is_done:
            end = self._read(text, position)
            self._held.append(text[position:end])
            position = end
            if self._depth == 0 and self._arguments:
                self._end_call()
        if self.is_done:
            self._release()
        return position

    def close(self) -> None:
        """The answer has ended."""
        self._release()

    def _read_name(self, text: str, position: int) -> int:
        character = text[position]
        if character == "(" and self._name:
            self._read = self._read_arguments
            return position
        if _NAME_CHARACTER.match(character):
            self._name += character
            return position + 1
        if character in WHITESPACE and not self._name:
            return position + 1
        self.is_done = True
        return position

    def _read_arguments(self, text: str, position: int) -> int:
        """From the opening parenthesis to the closing one."""
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
        arguments = _as_json("".join(self._arguments))
        self._arguments.clear()
        if arguments is None:
            self.is_done = True
            return
        self._parts.start_call(self._name)
        self._parts.add_arguments(arguments)
        self.num_calls += 1
        self._name = ""
        self._held.clear()
        self._read = self._read_between

    def _read_between(self, text: str, position: int) -> int:
        character = text[position]
        if character == ",":
            self._read = self._read_name
        elif character == "]":
            self._read = self._read_end
        elif character not in WHITESPACE:
            self.is_done = True
            return position
        return position + 1

    def _read_end(self, text: str, position: int) -> int:
        self._held.clear()
        self.is_done = True
        return position

    def _release(self) -> None:
        held = "".join(self._held)
        if self._read == self._read_end:
            held = ""
        if self.num_calls == 0 or held.strip(WHITESPACE):
            self._parts.add_text(held)
        self._held.clear()


def _as_json(arguments: str) -> str | None:
    """``(a=1, b="x")`` as a JSON object; ``None`` when it is anything but named literals."""
    try:
        call = ast.parse(f"f{_ESCAPE.sub(_python_escape, arguments)}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
        return None if None in values else compact_json(values)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _python_escape(escape: re.Match[str]) -> str:
    """Python warns of escapes that it does not have, and keeps their backslash."""
    return escape.group() if escape.group(1) in _PYTHON_ESCAPES else f"\\{escape.group()}"


def _literal(node: ast.expr) -> object:
    return ast.literal_eval(_JsonNames().visit(node))


class _JsonNames(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_json = node.id in _JSON_NAMES
        return ast.copy_location(ast.Constant(_JSON_NAMES[node.id]), node) if is_json else node
